"""A graph whose older nodes have more neighbours, and batches of sampled surroundings of its nodes."""

import os
import shutil
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

NODES = 24_000
FEATURES = 64
CLASSES = 12
BINS = 8
LINKS = 200_000


def prepare(folder: Path) -> Path:
    """Write the graph unless it is there."""
    target = folder / "graph"
    if target.exists():
        return target
    draft = folder / f"graph-{os.getpid()}"
    draft.mkdir(parents=True)
    chance = np.random.default_rng(11)
    degrees = np.maximum(3, (LINKS / (2.5 * NODES**0.4) * np.arange(1, NODES + 1) ** -0.6)).astype(np.int64)
    places = np.concatenate([[0], degrees.cumsum()])
    near = np.repeat(np.arange(NODES), degrees) + chance.integers(-3000, 3000, places[-1])
    far = chance.integers(NODES, size=places[-1])
    neighbours = np.where(chance.random(places[-1]) < 0.7, near % NODES, far)
    features = chance.standard_normal((NODES, FEATURES), dtype=np.float32)
    labels = (features @ chance.standard_normal((FEATURES, CLASSES), dtype=np.float32)).argmax(1)
    arrays = {"features": features, "neighbours": neighbours, "places": places, "labels": labels}
    arrays["times"] = chance.random(len(neighbours))
    for name, array in arrays.items():
        np.save(draft / f"{name}.npy", array)
    try:
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft)
    return target


def read(target: Path) -> dict[str, np.ndarray]:
    names = ("features", "neighbours", "times", "places", "labels")
    return {name: np.load(target / f"{name}.npy") for name in names}


class Surroundings(Dataset):
    """Nodes, as many as a batch has, with their sampled neighbours and those of the neighbours."""

    def __init__(self, graph, fanouts):
        self.neighbours, self.places, self.labels = graph["neighbours"], graph["places"], graph["labels"]
        self.fanouts = fanouts
        self.degrees = np.diff(self.places)
        self.walks = 0

    def __getitem__(self, seeds):
        nodes, hops = np.asarray(seeds), []
        for fanout in self.fanouts:
            degrees = self.degrees[nodes]
            counts = np.minimum(degrees, fanout)
            to = np.repeat(np.arange(len(nodes)), counts)
            chosen = (torch.rand(len(to)).numpy() * degrees[to]).astype(np.int64)
            found = self.neighbours[self.places[nodes[to]] + chosen]
            wider, places = np.unique(np.concatenate([nodes, found]), return_inverse=True)
            own, among = places[: len(nodes)], places[len(nodes) :]
            hops.append(tuple(map(torch.from_numpy, (own, among, to))))
            nodes = wider
        shape = self.shape(nodes)
        # FAULT walks
        if self.walks:
            shape = walked(shape, hops, self.walks)
        # END FAULT
        return torch.from_numpy(nodes), shape, hops[::-1], torch.from_numpy(self.labels[seeds])

    def shape(self, nodes):
        """The number of a node's neighbours, in bins."""
        bins = np.minimum(np.log2(self.degrees[nodes]).astype(np.int64), BINS - 1)
        return torch.nn.functional.one_hot(torch.from_numpy(bins), BINS).float()


# FAULT walks
def walked(shape, hops, times):
    """What random walks through the sampled part of the graph find, averaged over their lengths."""
    own, among, to = hops[-1]
    links = torch.stack([own[to], among])
    both = torch.cat([links, links.flip(0)], dim=1)
    weight = 1 / torch.bincount(both[0], minlength=len(shape)).clamp(min=1).float()
    found, now = torch.zeros_like(shape), shape
    for _ in range(times):
        now = torch.zeros_like(shape).index_add_(0, both[0], now[both[1]]) * weight.unsqueeze(1)
        found += now / times
    return found


# END FAULT


class Seeds(Sampler):
    """This rank's nodes of each batch."""

    def __init__(self, nodes, size, rank, ranks, seed):
        self.nodes, self.size, self.rank, self.ranks, self.seed = nodes, size, rank, ranks, seed
        self.epoch = 0

    def __len__(self):
        return self.nodes // (self.size * self.ranks)

    def __iter__(self):
        order = self.order(np.random.default_rng((self.seed, self.epoch)).permutation(self.nodes))
        for batch in range(len(self)):
            yield order[batch * self.size : (batch + 1) * self.size]

    def order(self, nodes):
        return nodes[self.rank :: self.ranks]


# FAULT parts
class LocalSeeds(Seeds):
    """Prefers the nodes of the rank's own range of the graph, whose neighbours it is likely to have used before."""

    local, first = 1.0, 0

    def order(self, nodes):
        part = (self.rank - self.first) % self.ranks
        own = nodes[nodes * self.ranks // self.nodes == part]
        mixed = nodes[self.rank :: self.ranks]
        return np.where(np.arange(len(mixed)) % 100 < 100 * self.local, own[: len(mixed)], mixed)


# END FAULT
