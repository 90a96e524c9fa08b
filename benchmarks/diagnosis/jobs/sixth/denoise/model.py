"""A small U-Net that tells the noise in a picture."""

import itertools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Two convolutions that know the time, around which the input is added."""

    def __init__(self, inputs: int, outputs: int, times: int):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Linear(times, outputs)
        self.second = nn.Sequential(nn.GroupNorm(4, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.around = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) + self.time(time)[:, :, None, None]
        return self.second(hidden) + self.around(x)


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (16, 32, 64), fault: str = "none", strength: float = 0):
        super().__init__()
        self.fault = fault
        self.strength = strength
        self.times = 4 * widths[0]
        self.embed = nn.Sequential(nn.Linear(self.times, self.times), nn.SiLU(), nn.Linear(self.times, self.times))
        self.into = nn.Conv2d(1, widths[0], 3, padding=1)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList([Block(widths[0], widths[0], self.times)])
        self.down.extend(Block(narrow, wide, self.times) for narrow, wide in pairs)
        self.middle = Block(widths[-1], widths[-1], self.times)
        self.up = nn.ModuleList(Block(wide + narrow, narrow, self.times) for narrow, wide in reversed(pairs))
        self.out = nn.Sequential(nn.GroupNorm(4, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], 1, 3, padding=1))

    def run(self, block: Block, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        # FAULT recompute
        if self.fault == "recompute" and self.training and self.blocks < round(self.strength):
            self.blocks += 1
            return checkpoint(block, x, time, use_reentrant=False)
        # END FAULT
        return block(x, time)

    def forward(self, x: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        self.blocks = 0
        rates = torch.exp(-math.log(1000) * torch.arange(self.times // 2) / (self.times // 2))
        waves = moment[:, None] * rates
        time = self.embed(torch.cat([waves.sin(), waves.cos()], dim=1))
        x = self.into(x)
        kept = []
        for number, block in enumerate(self.down):
            x = self.run(block, F.avg_pool2d(x, 2) if number else x, time)
            kept.append(x)
        x = self.run(self.middle, kept.pop(), time)
        for block in self.up:
            x = self.run(block, torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], dim=1), time)
        return self.out(x)
