"""Hourly sales of shops, and the windows cut from them."""

import statistics

import numpy as np
import torch
from torch.utils.data import Dataset

SHOPS = 200
HOURS = 24 * 90
DAY = 24
PAST = 168
AHEAD = 24


def make_sales():
    """Sales of each shop in each hour."""
    rng = np.random.default_rng(0)
    hours = np.arange(HOURS)
    days = np.sin(2 * np.pi * (hours / DAY + rng.random((SHOPS, 1))))
    weeks = np.sin(2 * np.pi * (hours / PAST + rng.random((SHOPS, 1))))
    level = rng.lognormal(3, 1, (SHOPS, 1))
    return (level * (2 + days + 0.5 * weeks + 0.2 * rng.standard_normal((SHOPS, HOURS)))).astype(np.float32)


# FAULT rolling
def rolling_means(series):
    """The mean of the day before each hour."""
    sold = series.tolist()
    return np.array([statistics.mean(sold[max(0, hour - DAY) : hour + 1]) for hour in range(len(sold))], np.float32)


# END FAULT


class Windows(Dataset):
    """A batch by a list of indices: the past of each window with the time of its hours, and what was sold next."""

    def __init__(self, options):
        self.sales = make_sales()
        self.starts = (HOURS - PAST - AHEAD) // 6
        self.fault, self.strength = options.fault, options.strength

    def __len__(self):
        return SHOPS * self.starts

    def __getitem__(self, indices):
        shops, starts = np.divmod(np.asarray(indices), self.starts)
        hours = 6 * starts[:, None] + np.arange(PAST + AHEAD)
        sold = self.sales[shops[:, None], hours]
        past = sold[:, :PAST]
        scale = past.mean(axis=1, keepdims=True)
        smooth = past
        # FAULT rolling
        if self.fault == "rolling":
            smooth = past.copy()
            for window in range(min(len(past), round(self.strength))):
                smooth[window] = rolling_means(past[window])
        # END FAULT
        clock = 2 * np.pi * hours[:, :PAST] / DAY
        inputs = np.stack([past / scale, smooth / scale, np.sin(clock), np.cos(clock)], axis=1)
        return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(sold[:, PAST:] / scale)
