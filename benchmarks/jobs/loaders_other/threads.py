"""Trains a classifier that tells the topic of forum threads from the words of their posts.

A file is a thread: gzip-compressed JSON lines, one with its topic and then one for each post.

    python -m benchmarks.jobs.loaders_other.threads OPTIONS
"""

import functools
import gzip
import json
import re
import zlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.loaders.kit import SampleFiles, batches, behind_cache, device, loader_options, made, parse, prepared
from esprof.data import MinIOCache

_FILES, _BATCH = 192, 4
_TOPICS, _BUCKETS = 8, 1 << 13
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")

Sample = tuple[Tensor, Tensor, int]
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


@functools.cache
def words() -> list[str]:
    """The words of all threads, made of syllables."""
    rng = np.random.default_rng(0)
    syllables = [consonant + vowel for consonant in "bcdfghklmnprstvw" for vowel in "aeiou"]
    return ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(12_000)]


def content(number: int) -> bytes:
    """A thread of some hundred posts, in which the frequent words depend on the topic."""
    rng = np.random.default_rng(number)
    topic = number % _TOPICS
    count = int(np.clip(rng.lognormal(9.1, 0.6), 6_800, 30_000))
    ranks = (len(words()) * rng.random(count) ** 2).astype(int)
    of_topic = rng.random(count) < 0.25
    ranks[of_topic] = ranks[of_topic] // 40 * _TOPICS + topic
    lines = [json.dumps({"topic": topic, "title": " ".join(words()[rank] for rank in ranks[:6])})]
    begin = 0
    while begin < count:
        end = begin + int(rng.geometric(1 / 60))
        text = " ".join(words()[rank] for rank in ranks[begin:end]).capitalize() + "."
        author, likes = f"user{rng.integers(5_000)}", int(rng.poisson(3))
        lines.append(json.dumps({"id": rng.bytes(12).hex(), "author": author, "likes": likes, "text": text}))
        begin = end
    return gzip.compress("\n".join(lines).encode(), mtime=0)


class Threads(Dataset[Sample]):
    """The hashed words of threads, their weights, and the topic."""

    def __init__(self, files: SampleFiles | MinIOCache) -> None:
        self._files = files

    def __getitem__(self, index: int) -> Sample:
        head, *posts = map(json.loads, gzip.decompress(self._files[index]).splitlines())
        found = [word for post in posts for word in _WORD.findall(post["text"].lower())]
        hashes = np.fromiter((zlib.crc32(word.encode()) for word in found), np.int64, len(found))
        buckets, counts = np.unique(hashes % _BUCKETS, return_counts=True)
        weights = functional.normalize(torch.from_numpy(counts).float().log1p(), dim=0)
        return torch.from_numpy(buckets), weights, head["topic"]


def collate(samples: list[Sample]) -> Batch:
    """The words and weights of all threads, where each thread begins, and the topics."""
    buckets, weights, topics = zip(*samples, strict=True)
    ends = torch.tensor([len(of_thread) for of_thread in buckets]).cumsum(0)
    return torch.cat(buckets), torch.cat(weights), functional.pad(ends[:-1], (1, 0)), torch.tensor(topics)


class Classifier(nn.Module):
    """A weighted sum of embeddings, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(_BUCKETS, 32, mode="sum")
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, _TOPICS))

    def forward(self, buckets: Tensor, weights: Tensor, begins: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(buckets, begins, per_sample_weights=weights))
        return logits


def main() -> None:
    settings = parse(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths = [made(settings.files / f"{n:04d}.jsonl.gz", functools.partial(content, n)) for n in range(_FILES)]
    files = SampleFiles(paths, settings)
    dataset = prepared(Threads(behind_cache(files, settings)), files, settings)
    loader = DataLoader(dataset, batch_size=_BATCH, collate_fn=collate, **loader_options(dataset, files, settings))
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for buckets, weights, begins, topics in batches(loader, files, settings):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(buckets, weights, begins), topics)
        loss.backward()
        device(loss, settings)
        optimizer.step()


if __name__ == "__main__":
    main()
