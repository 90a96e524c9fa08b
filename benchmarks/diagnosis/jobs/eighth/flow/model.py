"""A small U-net that is told the time."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def embed(time, width):
    rates = torch.exp(-math.log(1000.0) * torch.arange(width // 2) / (width // 2))
    angles = 1000 * time[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Residual(nn.Module):
    def __init__(self, inside, outside, time_width):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.time = nn.Linear(time_width, outside)
        self.norm2 = nn.GroupNorm(8, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, width=24, time_width=64):
        super().__init__()
        self.time_width = time_width
        self.time = nn.Sequential(nn.Linear(time_width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = Residual(width, width, time_width)
        self.down2 = Residual(width, 2 * width, time_width)
        self.middle = Residual(2 * width, 2 * width, time_width)
        self.up2 = Residual(4 * width, width, time_width)
        self.up1 = Residual(2 * width, width, time_width)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, time):
        t = self.time(embed(time, self.time_width))
        a = self.down1(self.enter(x), t)
        b = self.down2(F.avg_pool2d(a, 2), t)
        m = self.middle(F.avg_pool2d(b, 2), t)
        u = self.up2(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1), t)
        u = self.up1(torch.cat([F.interpolate(u, scale_factor=2.0), a], 1), t)
        return self.leave(F.silu(u))
