"""Clicks of a marketplace: who opened which offer, and what they had opened before."""

import torch
from torch.nn import functional as F

USERS = 8192
ITEMS = 8192
CATEGORIES = 64
HISTORY = 20
CONTENT = 64


class Clicks:
    """Clicks of users whose taste is a few categories, held in memory."""

    def __init__(self, count, generator):
        self.category_of = torch.arange(ITEMS) % CATEGORIES
        tastes = torch.randint(CATEGORIES, (USERS, 3), generator=generator)
        self.users = torch.randint(USERS, (count,), generator=generator)
        self.items = self._opened(tastes[self.users], 1, generator).squeeze(1)
        self.histories = self._opened(tastes[self.users], HISTORY, generator)
        share = torch.bincount(self.items, minlength=ITEMS).clamp(min=1) / count
        self.log_share = share.log()

    def _opened(self, tastes, count, generator):
        """Offers of the tastes; those with low numbers are opened more."""
        which = torch.randint(tastes.shape[1], (len(tastes), count), generator=generator)
        popular = torch.rand(len(tastes), count, generator=generator).square()
        number = (popular * (ITEMS // CATEGORIES)).long()
        return number * CATEGORIES + tastes.gather(1, which)

    def batches(self, size, rank, world, generator):
        """Batches of this rank's clicks, epoch after epoch."""
        while True:
            mine = torch.randperm(len(self.users), generator=generator)[rank::world]
            for rows in mine.split(size):
                if len(rows) == size:
                    yield self.users[rows], self.histories[rows], self.items[rows]


def content_vectors(width, generator):
    """What a language model made of the offers' texts."""
    return F.normalize(torch.randn(ITEMS, width, generator=generator), dim=1)
