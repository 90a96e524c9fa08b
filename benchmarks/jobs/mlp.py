"""A multi-layer perceptron with large gradients for little computing: its step is mostly communication."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.jobs.arguments import Arguments, parse
from benchmarks.jobs.files import Sample
from benchmarks.jobs.loop import Task, run

INPUTS = 64
OUTPUTS = 8


def model(arguments: Arguments) -> nn.Module:
    """Outputs (batch, 8) from points (batch, 64)."""
    hidden = arguments.hidden
    layers = [nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()) for _ in range(arguments.layers)]
    return nn.Sequential(nn.Linear(INPUTS, hidden), *layers, nn.Linear(hidden, OUTPUTS))


def write(path: Path, index: int) -> None:
    """A random point, and the absolute values of its first coordinates."""
    point = np.random.default_rng(index).standard_normal(INPUTS, dtype=np.float32)
    np.save(path, np.concatenate([point, abs(point[:OUTPUTS])]))


def read(path: Path) -> Sample:
    numbers = torch.from_numpy(np.load(path))
    return numbers[:INPUTS], numbers[INPUTS:]


if __name__ == "__main__":
    run(Task("mlp", ".npy", write, read, model, F.mse_loss), parse(__doc__, hidden=512, layers=4, batch=8))
