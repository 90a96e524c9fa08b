"""An MLP-mixer on pictures (Tolstikhin et al., NeurIPS 2021): many gradients of middling size, and more computing than
they take to send."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.jobs.arguments import Arguments, parse
from benchmarks.jobs.files import Sample
from benchmarks.jobs.loop import Task, run

SIDE, PATCH, CLASSES = 32, 4, 10
PATCHES = (SIDE // PATCH) ** 2


class Mixing(nn.Module):
    """A perceptron over patches, then one over channels, each on a residual stream (batch, patches, hidden)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.patches = nn.Sequential(nn.Linear(PATCHES, 2 * PATCHES), nn.GELU(), nn.Linear(2 * PATCHES, PATCHES))
        self.channels = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norm_2(x))
        return out


class Mixer(nn.Module):
    """Class logits (batch, 10) from pictures (batch, 3, 32, 32)."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, arguments.hidden, PATCH, PATCH)
        self.mix = nn.Sequential(*(Mixing(arguments.hidden) for _ in range(arguments.layers)))
        self.head = nn.Linear(arguments.hidden, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.cut(pictures).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.mix(patches).mean(dim=1))
        return logits


def write(path: Path, index: int) -> None:
    """A picture of noise around the brightness of its class."""
    noise = np.random.default_rng(index).normal(index % CLASSES * 20, 20, (3, SIDE, SIDE))
    np.save(path, noise.clip(0, 255).astype(np.uint8))


def read(path: Path) -> Sample:
    picture = torch.from_numpy(np.load(path)).float() / 255
    return picture, torch.tensor(int(path.stem) % CLASSES)


if __name__ == "__main__":
    run(Task("mixer", ".npy", write, read, Mixer, F.cross_entropy), parse(__doc__, hidden=256, layers=6, batch=8))
