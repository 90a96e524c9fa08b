"""What jobs share that make their samples in memory and write their training loop themselves."""

import argparse
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.jobs.files import Sample
from benchmarks.jobs.loop import endless, say, timed, worker

SAMPLES = 512


def run(name: str, description: str | None, train: Callable[[], Iterator[float]]) -> None:
    """Do as many steps of `train`, which yields the loss of each, as the command line asks for. The first step's time holds
    the making of the model."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    steps = parser.parse_args().steps
    with worker(seed=0):
        say(name, *timed(itertools.islice(train(), steps)))


def batches(inputs: Tensor, targets: Tensor, size: int) -> Iterator[Sample]:
    """This rank's share of the samples in batches of `size`, epoch after epoch."""
    samples = TensorDataset(inputs, targets)
    sampler: DistributedSampler[Sample] = DistributedSampler(samples, drop_last=True)
    return endless(DataLoader(samples, size, sampler=sampler, drop_last=True), sampler)


def counting(values: int, length: int) -> Tensor:
    """Sequences (SAMPLES, length) of numbers below `values` that grow by a step of their own, and begin anew at the end."""
    first, step = torch.randint(values, (SAMPLES, 1)), torch.randint(1, 5, (SAMPLES, 1))
    return (first + step * torch.arange(length)) % values
