"""Sentences of two languages that are drawn at random: the second is the first reversed, in other words."""

import random

import torch

WORDS = 1000
LEAST, MOST = 6, 16

Pair = tuple[list[int], list[int]]


def make_pairs(seed: int, count: int = 4096) -> list[Pair]:
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        source = [draw.randrange(3, WORDS) for _ in range(min(MOST, LEAST + int(draw.expovariate(0.15))))]
        pairs.append((source, [WORDS + 2 - word for word in reversed(source)]))
    return pairs


def make_batches(pairs: list[Pair], rows: int, rank: int, world: int, seed: int, fault: str) -> list[list[Pair]]:
    """This rank's batches of an epoch: of sentences that are about as long as one another."""
    draw = random.Random(seed)
    shuffled = draw.sample(pairs, len(pairs))
    # FAULT unsorted
    if fault == "unsorted":
        batches = [shuffled[start : start + rows] for start in range(0, len(shuffled), rows)]
        return batches[rank::world]
    # END FAULT
    shuffled.sort(key=lambda pair: len(pair[0]))
    batches = [shuffled[start : start + rows] for start in range(0, len(shuffled), rows)]
    rounds = [batches[start : start + world] for start in range(0, len(batches) - world + 1, world)]
    draw.shuffle(rounds)
    return [batches_of_ranks[rank] for batches_of_ranks in rounds]


def to_tensors(batch: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets, padded with word 0; a target begins with 1 and ends with 2."""
    longest = max(len(source) for source, _ in batch)
    sources = torch.tensor([source + [0] * (longest - len(source)) for source, _ in batch])
    targets = torch.tensor([[1, *target, 2] + [0] * (longest - len(target)) for _, target in batch])
    return sources, targets
