"""A transformer for load curves, cut into two stages."""

import torch
from torch import nn

PATCH, PATCHES, CHANNELS = 12, 28, 7
DIM, LAYERS = 96, 8


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(PATCH * CHANNELS, DIM)
        self.position = nn.Parameter(torch.randn(PATCHES, DIM) * 0.02)

    def forward(self, series):
        return self.project(series.unflatten(1, (PATCHES, PATCH)).flatten(2)) + self.position


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.out = nn.Linear(PATCHES * DIM, PATCH * CHANNELS)

    def forward(self, x):
        return self.out(self.norm(x).flatten(1))


def build_stage(stage, cut):
    """The layers before the cut, or those after it."""
    number = cut if stage == 0 else LAYERS - cut
    layers = [
        nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(number)
    ]
    return nn.Sequential(Patches(), *layers) if stage == 0 else nn.Sequential(*layers, Forecast())
