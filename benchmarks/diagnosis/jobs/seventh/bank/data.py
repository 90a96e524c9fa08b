"""Customers of a bank: names of categories, amounts, and whether a loan was paid back."""

import numpy as np
import torch
from torch.utils.data import Dataset

ROWS = 30_000
CATEGORIES = 60
AMOUNTS = 40
NAMES = 200
"""Of each category."""


class Customers(Dataset):
    """A batch by a list of indices: numbers of the categories' names, scaled amounts, labels."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.names = np.array([f"name-{number:03d}" for number in range(NAMES)], dtype="S8")
        codes = rng.integers(0, NAMES, (ROWS, CATEGORIES))
        self.categories = self.names[codes]
        self.amounts = rng.lognormal(2, 1, (ROWS, AMOUNTS)).astype(np.float32)
        self.steps = np.quantile(self.amounts[:2000], np.linspace(0, 1, 100), axis=0).astype(np.float32)
        self.paid = (codes[:, 0] + 10 * self.amounts[:, 0] > 160).astype(np.float32)

    def __len__(self):
        return ROWS

    def __getitem__(self, indices):
        codes = np.searchsorted(self.names, self.categories[indices])
        amounts = self.amounts[indices]
        places = np.stack([np.searchsorted(self.steps[:, column], amounts[:, column]) for column in range(AMOUNTS)])
        scaled = (places.T / 50 - 1).astype(np.float32)
        return torch.from_numpy(codes), torch.from_numpy(scaled), torch.from_numpy(self.paid[indices])
