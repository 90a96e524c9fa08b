"""Bags of tiles: slides as files of tiles, and the data set that draws some tiles of a slide."""

import os
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

SLIDES = 48
CLASSES = 3
BAG = 24
SIDE = 32


def write_slides(folder: Path) -> Path:
    """Write the slides where they are not there yet: from a few dozen to a few hundred tiles each, as bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for number in range(SLIDES):
        path = folder / f"slide-{number:03}-{number % CLASSES}.npy"
        tiles = chance.integers(0, 256, (int(chance.integers(BAG, 8 * BAG)), 3, SIDE, SIDE), dtype=np.uint8)
        if path.exists():
            continue
        tiles[:, number % CLASSES] //= 2
        written = folder / f"part-{os.getpid()}"
        with written.open("wb") as file:
            np.save(file, tiles)
        written.replace(path)
    return folder


class Bags(Dataset):
    """Each slide `draws` times an epoch, each time with BAG of its tiles."""

    def __init__(self, folder: Path, draws: int):
        self.paths = sorted(folder.glob("slide-*.npy"))
        self.draws = draws

    def __len__(self):
        return self.draws * len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index % len(self.paths)]
        tiles = np.load(path, mmap_mode="r")
        drawn, _ = torch.randperm(len(tiles))[:BAG].sort()
        return torch.from_numpy(tiles[drawn.numpy()]), int(path.stem[-1])


def collate(bags):
    """Tiles of all bags in one tensor, as bytes; the labels of the bags."""
    tiles, labels = zip(*bags, strict=True)
    return torch.cat(tiles), torch.tensor(labels)
