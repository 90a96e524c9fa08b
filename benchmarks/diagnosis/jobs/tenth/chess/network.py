"""A residual tower with a head for moves, from square to square, and one for the result."""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.jobs.tenth.chess.replay import PIECES, SQUARES


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(x + self.second_norm(self.second(y)), inplace=True)


class Player(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.stem = nn.Conv2d(PIECES, width, 3, padding=1)
        self.tower = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.origins = nn.Conv2d(width, 32, 1)
        self.targets = nn.Conv2d(width, 32, 1)
        self.value = nn.Sequential(
            nn.Conv2d(width, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * SQUARES, 64), nn.ReLU(), nn.Linear(64, 3)
        )

    def forward(self, planes):
        """Logits of the moves, origin major, and of loss, draw and win."""
        x = self.tower(self.stem(planes))
        origins, targets = self.origins(x).flatten(2), self.targets(x).flatten(2)
        policy = torch.einsum("bco,bct->bot", origins, targets) * 32**-0.5
        return policy.flatten(1), self.value(x)
