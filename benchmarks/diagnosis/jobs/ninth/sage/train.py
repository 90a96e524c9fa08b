"""Classifies the nodes of a graph from sampled neighbours (GraphSAGE) by DDP.

torchrun --nproc-per-node 2 train.py --files /tmp/sage
"""

import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.ninth.sage import data

WIDTH = 128
BATCH = 400
FANOUTS = (12, 12)


class Layer(nn.Module):
    """A node's own state and the mean of its neighbours'."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)
        self.others = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x, hop):
        own, among, to = hop
        total = x.new_zeros(len(own), WIDTH).index_add(0, to, x[among])
        counts = torch.bincount(to, minlength=len(own)).unsqueeze(1)
        return F.relu(self.norm(self.own(x[own]) + self.others(total / counts)))


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        inputs = data.FEATURES + data.BINS
        self.enter = nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in FANOUTS)
        self.head = nn.Linear(WIDTH, data.CLASSES)

    def forward(self, features, shape, hops):
        x = self.enter(torch.cat([features, shape], dim=1))
        for layer, hop in zip(self.layers, hops, strict=True):
            x = layer(x, hop)
        return self.head(x)


# FAULT tables
class WithGraph(nn.Module):
    """A model with the arrays of its graph, so that they move to its device with it."""

    def __init__(self, model, arrays):
        super().__init__()
        self.model = model
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(array))

    def forward(self, nodes, shape, hops):
        return self.model(self.features[nodes], shape, hops)


# END FAULT


# FAULT saves
def save(file, model, optimizer, graph, step):
    """Write all that is needed to go on from here, whatever happens."""
    draft = file.with_suffix(".part")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "graph": graph}
    with draft.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(file)


# END FAULT


# FAULT collects
def free_memory():
    gc.collect()


# END FAULT


def epochs(loader, sampler):
    while True:
        yield from loader
        sampler.epoch += 1


def main():
    options = read_arguments(steps=80, needs_files=True)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)

    graph = data.read(data.prepare(options.files))
    surroundings = data.Surroundings(graph, FANOUTS)
    # FAULT walks
    if options.fault == "walks":
        surroundings.walks = round(options.strength)
    # END FAULT
    sampler = data.Seeds(data.NODES, BATCH, rank, ranks, options.seed)
    # FAULT parts
    if options.fault == "parts":
        sampler = data.LocalSeeds(data.NODES, BATCH, rank, ranks, options.seed)
        sampler.local, sampler.first = options.strength, options.rank
    # END FAULT
    loader = DataLoader(
        surroundings, sampler=sampler, batch_size=None, num_workers=1, prefetch_factor=4, persistent_workers=True
    )

    features = torch.from_numpy(graph["features"])
    net = Sage()
    # FAULT tables
    if options.fault == "tables":
        net = WithGraph(net, dict(list(graph.items())[: round(options.strength)]))
    # END FAULT
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)

    hits = torch.zeros(())
    for step, (nodes, shape, hops, labels) in zip(range(options.steps), epochs(loader, sampler), strict=False):
        inputs = features[nodes]
        # FAULT tables
        if options.fault == "tables":
            inputs = nodes
        # END FAULT
        scores = model(inputs, shape, hops)
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (scores.argmax(1) == labels).float().mean()
        # FAULT collects
        if options.fault == "collects" and step % round(options.strength) == 0:
            free_memory()
        # END FAULT
        # FAULT saves
        if options.fault == "saves" and rank == 0 and step % round(options.strength) == 0:
            save(options.files / "last.pt", model, optimizer, graph, step)
        # END FAULT
        if rank == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}, accuracy {hits.item() / 20:.2f}")
            hits.zero_()
    leave()


if __name__ == "__main__":
    main()
