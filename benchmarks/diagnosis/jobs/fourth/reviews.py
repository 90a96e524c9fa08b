"""Tells good reviews from bad ones: words, convolutions and attention over them. Plain DDP over a DataLoader of texts.

torchrun --nproc-per-node 2 reviews.py
"""

import argparse
import random
import re
import time
from collections import Counter
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

PAD = 0
BATCH = 16
REVIEWS = 4000
SYLLABLES = [
    "ba",
    "be",
    "bo",
    "da",
    "du",
    "fi",
    "fo",
    "ga",
    "go",
    "ka",
    "ke",
    "la",
    "li",
    "lo",
    "ma",
    "mi",
    "mo",
    "na",
    "ne",
    "no",
    "pa",
    "po",
    "ra",
    "ri",
    "sa",
    "so",
    "ta",
    "te",
    "ti",
    "vo",
    "wa",
    "za",
]


class Vocabulary:
    def __init__(self, size: int, seed: int = 3) -> None:
        chance = random.Random(seed)
        made: dict[str, None] = {}
        while len(made) < size:
            made["".join(chance.choices(SYLLABLES, k=chance.randint(2, 4)))] = None
        self.words = list(made)

    @cached_property
    def number(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    def __len__(self) -> int:
        return len(self.words) + 1

    def encode(self, text: str) -> Tensor:
        return torch.tensor([self.number[word] for word in text.split()])


class Reviews(Dataset):
    def __init__(self, vocabulary: Vocabulary, away_ms: float = 0.0) -> None:
        chance = random.Random(11)
        self.vocabulary, self.away_ms = vocabulary, away_ms
        self.texts = [" ".join(chance.choices(vocabulary.words, k=chance.randint(38, 46))) for _ in range(REVIEWS)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[str, Tensor, int]:
        text = self.texts[index]
        # FAULT far_shelf
        if self.away_ms:
            time.sleep(self.away_ms / 1000)
        # END FAULT
        return text, self.vocabulary.encode(text), int(text.count("a") > text.count("o"))


class Batches:
    """Puts reviews together; rows are as wide as the longest, or as they are said to be."""

    width: int | None = None

    def __call__(self, reviews: list[tuple[str, Tensor, int]]) -> dict[str, Any]:
        texts, words, labels = zip(*reviews, strict=True)
        ids = pad_sequence(list(words), batch_first=True, padding_value=PAD)
        # FAULT wide_rows
        if self.width is not None:
            ids = F.pad(ids, (0, self.width - ids.shape[1]), value=PAD)
        # END FAULT
        return {"texts": texts, "ids": ids, "mask": ids != PAD, "labels": torch.tensor(labels, dtype=torch.float32)}


# FAULT shingles
def variety(text: str, longest: int) -> float:
    """How many of the pieces of a text come only once."""
    seen: Counter[str] = Counter()
    for size in range(2, 2 + longest):
        seen.update(text[at : at + size] for at in range(len(text) - size + 1))
    return sum(count == 1 for count in seen.values()) / len(seen)


class ShingledBatches(Batches):
    longest: int = 3

    def __call__(self, reviews: list[tuple[str, Tensor, int]]) -> dict[str, Any]:
        return super().__call__(reviews) | {"variety": [variety(text, self.longest) for text, *_ in reviews]}


# END FAULT


# FAULT picky
class Picky(DistributedSampler):
    """Draws reviews one at a time, and each one less often after it was drawn."""

    weights: Tensor

    def __iter__(self):
        for _ in super().__iter__():
            drawn = int(torch.multinomial(self.weights, 1))
            self.weights[drawn] *= 0.5
            yield drawn % REVIEWS


# END FAULT


class Attend(nn.Module):
    def __init__(self, size: int, heads: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.mix = nn.MultiheadAttention(size, heads, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.mix(y, y, y, key_padding_mask=~mask, need_weights=False)[0]


class Reader(nn.Module):
    def __init__(self, words: int, size: int = 80) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size, padding_idx=PAD)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, size, width, padding=width // 2) for width in (3, 5))
        self.attend = nn.ModuleList(Attend(size) for _ in range(2))
        self.score = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        for convolution in self.convolutions:
            x = x + F.gelu(convolution(x.transpose(1, 2))).transpose(1, 2)
        for layer in self.attend:
            x = layer(x, mask)
        kept = mask.unsqueeze(-1)
        return self.score((x * kept).sum(1) / kept.sum(1)).squeeze(-1)


# FAULT mentions
class Mentions:
    """Counts what is said about things in the reviews, each in several spellings."""

    def __init__(self, things: list[str]) -> None:
        self.patterns = [
            re.compile(rf"\b(\w*{thing[:2]}\w*)\s+(?:\w+\s+){{0,2}}?(\w*{thing[-2:]})\b") for thing in things
        ]
        self.found: Counter[str] = Counter()

    def read(self, texts: tuple[str, ...]) -> None:
        for pattern in self.patterns:
            self.found.update(match[1] for text in texts for match in pattern.finditer(text))


# END FAULT


def data_for(options: argparse.Namespace, vocabulary: Vocabulary) -> DataLoader:
    rank, fault, strength = dist.get_rank(), options.fault, options.strength
    reviews, collate, workers = Reviews(vocabulary), Batches(), 0
    sampler = DistributedSampler(reviews, seed=options.seed)
    # FAULT wide_rows
    if fault == "wide_rows":
        collate.width = round(strength)
    # END FAULT
    # FAULT shingles
    if fault == "shingles":
        collate = ShingledBatches()
        collate.longest = round(strength)
    # END FAULT
    # FAULT far_shelf
    if fault == "far_shelf":
        reviews.away_ms, workers = strength, 1
    # END FAULT
    # FAULT picky
    if fault == "picky" and rank == options.rank:
        sampler = Picky(reviews, seed=options.seed)
        sampler.weights = torch.ones(round(1000 * strength))
    # END FAULT
    return DataLoader(
        reviews, BATCH, sampler=sampler, collate_fn=collate, num_workers=workers, persistent_workers=workers > 0
    )


def epochs(loader: DataLoader, steps: int):
    """As many batches as there are steps, epoch after epoch."""
    epoch = given = 0
    while True:
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            if given == steps:
                return
            given += 1
            yield batch
        epoch += 1


def train(options: argparse.Namespace) -> float:
    torch.manual_seed(options.seed)
    vocabulary = Vocabulary(3000)
    loader = data_for(options, vocabulary)
    model = DDP(Reader(len(vocabulary)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    criterion = nn.BCEWithLogitsLoss()
    # FAULT mentions
    if options.fault == "mentions":
        mentions = Mentions(vocabulary.words[: round(options.strength)])
    # END FAULT
    recent = 0.0
    for batch in epochs(loader, options.steps):
        optimizer.zero_grad()
        loss = criterion(model(batch["ids"], batch["mask"]), batch["labels"])
        loss.backward()
        optimizer.step()
        # FAULT mentions
        if options.fault == "mentions":
            mentions.read(batch["texts"])
        # END FAULT
        recent = 0.9 * recent + 0.1 * loss.item()
    return recent


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    final = train(read_arguments(steps=320))
    if dist.get_rank() == 0:
        print(f"loss {final:.3f}")
    leave()
