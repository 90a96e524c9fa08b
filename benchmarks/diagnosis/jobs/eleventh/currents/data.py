"""Snapshots of a shallow ocean basin: velocities and the height of the surface."""

import os

import numpy as np
import torch
from torch.utils.data import Dataset

GRID = 48
SNAPSHOTS = 240
CHANNELS = 3
WAVES = 24


def simulate(chance):
    """Drifting waves of a stream function, and the currents along it, as (snapshots, channels, y, x)."""
    along = np.arange(GRID) * 2 * np.pi / GRID
    times = np.arange(SNAPSHOTS)
    stream = np.zeros((SNAPSHOTS, GRID, GRID), np.float32)
    for _ in range(WAVES):
        k, m = chance.integers(1, 6, 2)
        drift, phase = -k / (k * k + m * m), chance.uniform(0, 2 * np.pi)
        eastward = np.exp(1j * (k * along[None, :] - 0.2 * drift * times[:, None] + phase))
        northward = np.exp(1j * m * along)
        wave = (northward[None, :, None] * eastward[:, None, :]).real
        stream += (wave / (k * k + m * m)).astype(np.float32)
    u = -np.gradient(stream, axis=1)
    v = np.gradient(stream, axis=2)
    fields = np.stack([u, v, stream], axis=1)
    return (fields / fields.std(axis=(0, 2, 3), keepdims=True)).astype(np.float32)


def write(folder, options):
    """The basin's file, which is made once."""
    file = folder / f"basin-{options.seed}.npy"
    if not file.exists():
        made = folder / f"{file.stem}-{os.getpid()}.npy"
        np.save(made, simulate(np.random.default_rng(options.seed)))
        made.rename(file)
    return file


class Basin(Dataset):
    """Pairs of a snapshot and the next one."""

    def __init__(self, file, rows):
        self.fields = np.load(file, mmap_mode="r")
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        start = self.rows[index]
        pair = torch.from_numpy(np.array(self.fields[start : start + 2]))
        return pair[0], pair[1]


# FAULT archives
class Archives(Basin):
    """The same from compressed archives, each of some days."""

    def __init__(self, file, rows, days):
        super().__init__(file, rows)
        self.folder, self.days = file.with_suffix(f".{days}"), days
        if not self.folder.exists():
            self._compress()

    def _compress(self):
        made = self.folder.with_suffix(f".{os.getpid()}")
        made.mkdir()
        for start in range(0, len(self.fields) - 1, self.days):
            np.savez_compressed(made / f"{start}.npz", fields=self.fields[start : start + self.days + 1])
        made.rename(self.folder)

    def __getitem__(self, index):
        first = self.rows[index] // self.days * self.days
        with np.load(self.folder / f"{first}.npz") as archive:
            fields = torch.from_numpy(archive["fields"])
        start = self.rows[index] - first
        return fields[start], fields[start + 1]


# END FAULT


def open_basin(file, rows, options):
    # FAULT archives
    if options.fault == "archives":
        return Archives(file, rows, round(options.strength))
    # END FAULT
    return Basin(file, rows)
