"""Speeds at the sensors of a road network, and windows of them to forecast from."""

import os

import numpy as np
import torch
from torch.utils.data import Dataset

SENSORS = 192
SLOTS_OF_DAY = 288
DAYS = 21
PAST, FUTURE = 12, 12


def adjacency():
    """Gaussian kernel of the distances between sensors, thresholded as is usual for road networks."""
    chance = np.random.default_rng(7)
    places = chance.uniform(0, 10, (SENSORS, 2))
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    weights = np.exp(-((distances / distances.std()) ** 2))
    weights[weights < 0.1] = 0
    one_way = chance.random(weights.shape) < 0.2
    return np.where(one_way, 0, weights) + np.eye(SENSORS)


def transitions():
    """Random walks along the roads and against them."""
    weights = adjacency()
    walks = [edges / edges.sum(1, keepdims=True) for edges in (weights, weights.T)]
    return [torch.from_numpy(walk.T.copy()).float() for walk in walks]


def speeds(folder):
    """The series (slots, sensors), made on first use; some values are missing, which is 0."""
    path = folder / "speeds.npy"
    if not path.exists():
        chance = np.random.default_rng(3)
        hours = np.arange(DAYS * SLOTS_OF_DAY)[:, None] / 12
        rush = np.exp(-((hours % 24 - chance.normal(8, 1, SENSORS)) ** 2) / 4)
        rush = rush + np.exp(-((hours % 24 - chance.normal(17, 1, SENSORS)) ** 2) / 6)
        weekday = 1 - 0.7 * (hours // 24 % 7 >= 5)
        series = 65 - 30 * weekday * rush * chance.uniform(0.3, 1, SENSORS) + chance.normal(0, 2, rush.shape)
        series[chance.random(series.shape) < 0.02] = 0
        replace(path, lambda file: np.save(file, series.astype(np.float32)))
    return np.load(path)


def replace(path, write):
    """Write a file under a temporary name first, since the ranks may do so at once."""
    temporary = path.with_name(f"{path.name}.{os.environ.get('RANK', '0')}")
    with temporary.open("wb") as file:
        write(file)
    temporary.replace(path)


def weekly_profile(series, days):
    """Mean speeds of the slots of a week, of its first days."""
    mean = series.reshape(-1, 7 * SLOTS_OF_DAY, SENSORS).mean(0)
    return torch.from_numpy(mean[: days * SLOTS_OF_DAY])


class Windows(Dataset):
    """Speeds before and after each slot, and the slot."""

    def __init__(self, series):
        self.series = series
        self.length = len(series) - PAST - FUTURE

    def __len__(self):
        return self.length

    def read(self):
        return self.series

    def __getitem__(self, first):
        window = self.read()[first : first + PAST + FUTURE]
        return window[:PAST], window[PAST:], first + PAST


# FAULT archive
class ArchivedWindows(Windows):
    """Windows of the series as it is archived, by name, with the network's other series."""

    def __init__(self, folder, series):
        super().__init__(series)
        path = folder / f"archive-{len(series)}.npz"
        if not path.exists():
            replace(path, lambda file: np.savez_compressed(file, speed=series, slot=np.arange(len(series))))
        self.archive = np.load(path)

    def read(self):
        return self.archive["speed"]


# END FAULT
