"""A network on embedded categories and amounts."""

import torch
from data import AMOUNTS, CATEGORIES, NAMES
from torch import nn

WIDTH = 12
"""Of a category's embedding."""
HIDDEN = 128


class Scorer(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.table = nn.Embedding(CATEGORIES * NAMES, WIDTH)
        self.register_buffer("offsets", NAMES * torch.arange(CATEGORIES))
        self.first = nn.Linear(CATEGORIES * WIDTH + AMOUNTS, HIDDEN)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.fault, self.strength = options.fault, options.strength

    def forward(self, codes, amounts):
        embedded = self.embedded(codes + self.offsets)
        return self.rest(self.first(torch.cat([embedded, amounts], dim=1))).squeeze(1)

    def embedded(self, codes):
        # FAULT columns
        if self.fault == "columns":
            alone = round(self.strength * CATEGORIES)
            columns = [self.table(codes[:, column]) for column in range(alone)]
            return torch.cat([*columns, self.table(codes[:, alone:]).flatten(1)], dim=1)
        # END FAULT
        return self.table(codes).flatten(1)
