"""Hourly demand of many meters: days, weeks and noise."""

import math

import torch
from torch import Tensor

HOURS = 24 * 120
METERS = 200


def hourly_demand(seed: int) -> Tensor:
    """Demand by meter and hour, about 1 in the mean; the same on all ranks."""
    chance = torch.Generator().manual_seed(seed)
    hours = torch.arange(HOURS)
    level, daily, weekly, shift = torch.rand(4, METERS, 1, generator=chance)
    day = torch.sin(2 * math.pi * (hours / 24 + shift))
    week = torch.cos(2 * math.pi * hours / 168)
    noise = 0.1 * torch.randn(METERS, HOURS, generator=chance)
    return 0.5 + level + 0.5 * daily * day + 0.2 * weekly * week + noise


class Windows:
    """Draws windows of all meters: their past and what follows it."""

    def __init__(self, demand: Tensor, past: int, horizon: int, seed: int):
        self.windows = demand.unfold(1, past + horizon, 1)
        self.past = past
        self.chance = torch.Generator().manual_seed(seed)

    def draw(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        meters = torch.randint(self.windows.shape[0], (rows,), generator=self.chance)
        starts = torch.randint(self.windows.shape[1], (rows,), generator=self.chance)
        windows = self.windows[meters, starts]
        return meters, windows[:, : self.past], windows[:, self.past :]
