"""Aerial tiles of several spectral bands, in shards of one array each."""

import os

import numpy as np
import torch
from torch.utils.data import Dataset

BANDS = 6
SIZE = 64
SHARDS = 8
TILES = 128
"""Of a shard."""


def prepare(folder):
    """Draw smooth terrain with noise of the sensor, where it is not there yet."""
    rng = np.random.default_rng(7)
    for shard in range(SHARDS):
        target = folder / f"tiles-{shard}.npy"
        if target.exists():
            continue
        coarse = rng.integers(400, 9000, (TILES, BANDS, SIZE // 8, SIZE // 8), dtype=np.uint16)
        tiles = coarse.repeat(8, axis=2).repeat(8, axis=3)
        tiles += rng.integers(0, 300, tiles.shape, dtype=np.uint16)
        partial = folder / f"tiles-{shard}.{os.getpid()}.npy"
        np.save(partial, tiles)
        partial.rename(target)


class Tiles(Dataset):
    """Tiles as counts of the sensor, out of mapped files."""

    def __init__(self, folder):
        self.shards = [np.load(folder / f"tiles-{shard}.npy", mmap_mode="r") for shard in range(SHARDS)]

    def __len__(self):
        return SHARDS * TILES

    def __getitems__(self, indices):
        return np.stack([self.shards[index // TILES][index % TILES] for index in indices])


# FAULT archives
class ArchivedTiles(Tiles):
    """Tiles out of an archive a shard."""

    def __init__(self, folder, tiles):
        self.archives = []
        for shard in range(SHARDS):
            file = folder / f"tiles-{shard}-of-{tiles}.npz"
            if not file.exists():
                partial = folder / f"tiles-{shard}.{os.getpid()}.npz"
                np.savez(partial, tiles=np.load(folder / f"tiles-{shard}.npy")[:tiles])
                partial.rename(file)
            self.archives.append(np.load(file))
        self.tiles = tiles

    def __len__(self):
        return SHARDS * self.tiles

    def __getitems__(self, indices):
        return np.stack([self.archives[index // self.tiles]["tiles"][index % self.tiles] for index in indices])


# END FAULT


def collate(tiles):
    return torch.from_numpy(tiles.astype(np.float32))
