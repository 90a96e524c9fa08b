"""Gridded fields of an atmosphere, memory-mapped from one file that the first run makes."""

import os
import random

import numpy as np
import torch
from torch.utils.data import Dataset

VARIABLES = ("z500", "t850", "q700", "u10", "msl")
ROWS, COLUMNS = 32, 64
TIMES = 1000
HISTORY = 2
LEADS = 6
FARTHEST = 2 * LEADS


def open_fields(folder):
    """Time x variable x latitude x longitude; a memory map."""
    file = folder / "fields.npy"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"fields.{os.getpid()}.npy"
        np.save(unfinished, _simulate(np.random.default_rng(0)))
        unfinished.replace(file)
    return np.load(file, mmap_mode="r")


def _simulate(chance):
    """Waves that travel eastward at speeds of their own, over noise."""
    shape = (TIMES, len(VARIABLES), ROWS, COLUMNS)
    fields = 0.2 * chance.standard_normal(shape, dtype=np.float32)
    longitude = np.linspace(0, 2 * np.pi, COLUMNS, endpoint=False, dtype=np.float32)
    latitude = np.cos(np.linspace(-np.pi / 2, np.pi / 2, ROWS, dtype=np.float32))
    time = np.arange(TIMES, dtype=np.float32)[:, None, None]
    for variable in range(len(VARIABLES)):
        wave = np.sin((variable + 1) * (longitude - 0.05 * time)) + 0.3 * np.cos(time / 60)
        fields[:, variable] += latitude[:, None] * wave
    return fields


def climatology(fields, periods):
    """Mean fields of as many equal periods of the record."""
    starts = np.arange(periods) * len(fields) // periods
    lengths = np.diff(starts, append=len(fields)).astype(np.float32)
    return torch.from_numpy(np.add.reduceat(fields, starts) / lengths[:, None, None, None])


class Forecasts(Dataset):
    """Pairs of recent fields and those at the lead times, a batch at a time."""

    def __init__(self, fields, options, rank):
        self.fields = fields
        self.options = options
        self.chance = random.Random(1000 * options.seed + rank)
        self.first = HISTORY - 1
        # FAULT despike
        if options.fault == "despike":
            self.first = round(options.strength)
        # END FAULT

    def __len__(self):
        return len(self.fields) - self.first - FARTHEST

    def __getitems__(self, indices):
        times = np.asarray(indices) + self.first
        leads = LEADS
        # FAULT horizon
        if self.options.fault == "horizon":
            leads += self.chance.choice((-1, 1)) * round(self.options.strength)
        # END FAULT
        recent = self.fields[times[:, None] + np.arange(1 - HISTORY, 1)]
        later = self.fields[times[:, None] + np.arange(1, leads + 1)]
        # FAULT despike
        if self.options.fault == "despike":
            least, most = plausible(self.fields, times, round(self.options.strength))
            recent, later = recent.clip(least, most), later.clip(least, most)
        # END FAULT
        return torch.from_numpy(times), torch.from_numpy(recent), torch.from_numpy(later)


# FAULT despike
def plausible(fields, times, window, deviations=5):
    """Least and most values that the times before each of `times` let expect: spikes are instruments that failed."""
    before = [fields[time - window : time] for time in times]
    mean = np.stack([values.mean(axis=0, keepdims=True) for values in before])
    spread = deviations * np.stack([values.std(axis=0, keepdims=True) for values in before])
    return mean - spread, mean + spread


# END FAULT
