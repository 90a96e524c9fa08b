"""A convolutional network with BatchNorm that tells stripes apart by their angle, in JPEG files that it decodes."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from benchmarks.jobs.arguments import Arguments, parse
from benchmarks.jobs.files import Sample
from benchmarks.jobs.loop import Task, run

CLASSES = 10
PICTURE = 256
"""Pixels a side of a picture in its file."""
SIDE = 32
"""Pixels a side of what the model sees."""


def model(arguments: Arguments) -> nn.Module:
    """Class logits (batch, 10) from pictures (batch, 3, side, side); each layer after the first halves the side."""
    hidden = arguments.hidden
    layers = [layer(3, hidden, stride=1)] + [layer(hidden, hidden, stride=2) for _ in range(arguments.layers - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(hidden, CLASSES))


def layer(before: int, after: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


def write(path: Path, index: int) -> None:
    """Stripes at an angle that says the class, in noise. The class is the index modulo 10."""
    rng = np.random.default_rng(index)
    angle = np.pi * (index % CLASSES) / CLASSES
    y, x = np.mgrid[:PICTURE, :PICTURE] / PICTURE
    wave = np.sin(2 * np.pi * (6 * (x * np.cos(angle) + y * np.sin(angle)) + rng.random()))
    noise = rng.standard_normal((PICTURE, PICTURE, 3), dtype=np.float32)
    pixels = 128 + 80 * wave[..., None] * rng.uniform(0.5, 1, 3) + 16 * noise
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def read(path: Path) -> Sample:
    """Decode a picture, shrink it, and scale it to -1 … 1."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((SIDE, SIDE)), dtype=np.float32)
    return torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1), torch.tensor(int(path.stem) % CLASSES)


if __name__ == "__main__":
    run(Task("cnn", ".jpg", write, read, model, F.cross_entropy), parse(__doc__, hidden=64, layers=4, batch=8))
