"""Training on gloo that stands still before its first step is over, in one of the ways that `WAYS` names."""

import multiprocessing
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if "loader" in sys.argv and index == int(sys.argv[2]):
            multiprocessing.parent_process().join()  # the loader's worker, until it is an orphan
        return torch.ones(16)


def wander() -> None:
    time.sleep(600)  # anything but the others' way


def compute(seconds: float) -> None:
    """At one place, in a loop that never ends a step."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(100_000))


def join() -> int:
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    return dist.get_rank()


def train() -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Samples(), batch_size=2, num_workers=2 if "loader" in sys.argv else 0):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def before_joining() -> None:
    if os.environ["RANK"] == "1":
        wander()
    join()


def before_collective() -> None:
    if join() == 1:
        wander()
    nn.parallel.DistributedDataParallel(nn.Linear(16, 1))


def loader() -> None:
    train()


def slow() -> None:
    """Long, but not without doing anything."""
    if join() == 1:
        compute(float(sys.argv[2]))
    dist.barrier()
    train()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads need Python's lock once more, or PyTorch 2.13 may abort the process


WAYS = (before_joining, before_collective, loader, slow)

if __name__ == "__main__":
    torch.set_num_threads(1)
    next(way for way in WAYS if way.__name__ == sys.argv[1])()
