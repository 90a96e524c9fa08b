"""A recurrent network that continues sequences of numbers, by DDP; gradients of several batches are added up a step."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.jobs.memory import batches, counting, run

NUMBERS = 64
LENGTH = 24
HIDDEN = 384
BATCHES = 4
"""How many make a step."""


class Recurrent(nn.Module):
    """Logits (batch, NUMBERS, length) of the number that follows each in sequences (batch, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUMBERS, NUMBERS)
        self.gru = nn.GRU(NUMBERS, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, NUMBERS)

    def forward(self, numbers: Tensor) -> Tensor:
        states, _ = self.gru(self.embed(numbers))
        logits: Tensor = self.head(states)
        return logits.transpose(1, 2)


def train() -> Iterator[float]:
    sequences = counting(NUMBERS, LENGTH + 1)
    samples = batches(sequences[:, :-1], sequences[:, 1:], 8)
    model = DistributedDataParallel(Recurrent())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    while True:
        total = 0.0
        optimizer.zero_grad()
        for index, (inputs, targets) in enumerate(itertools.islice(samples, BATCHES), start=1):
            with nullcontext() if index == BATCHES else model.no_sync():
                loss = F.cross_entropy(model(inputs), targets) / BATCHES
                loss.backward()
            total += loss.item()
        optimizer.step()
        yield total


if __name__ == "__main__":
    run("accumulated", __doc__, train)
