"""A residual convolutional network that finds the brightest quarter of noisy pictures, by DDP."""

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.jobs.loop import steps
from benchmarks.jobs.memory import SAMPLES, batches, run

SIDE = 24
CHANNELS = (1, 32, 64, 128)
QUARTERS = 4


class Block(nn.Module):
    """Pictures (batch, after, side / 2, side / 2) from (batch, before, side, side)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.shrink = nn.Conv2d(before, after, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, after)
        self.refine = nn.Conv2d(after, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.shrink(x)))
        out: Tensor = x + F.relu(self.refine(x))
        return out


def pictures() -> tuple[Tensor, Tensor]:
    """Noise (SAMPLES, 1, SIDE, SIDE) that is brighter in one quarter, and which quarter it is."""
    quarter = torch.randint(QUARTERS, (SAMPLES,))
    noise = torch.randn(SAMPLES, 1, SIDE, SIDE)
    brighter = F.one_hot(quarter, QUARTERS).view(SAMPLES, 1, 2, 2).float()
    return noise + F.interpolate(brighter, scale_factor=SIDE // 2), quarter


def train() -> Iterator[float]:
    blocks = [Block(before, after) for before, after in itertools.pairwise(CHANNELS)]
    left = (SIDE >> len(blocks)) ** 2
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Flatten(), nn.Linear(left * CHANNELS[-1], QUARTERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return steps(batches(*pictures(), 48), model, optimizer, F.cross_entropy)


if __name__ == "__main__":
    run("residual", __doc__, train)
