"""Pictures of leaves, a few with their kind."""

import torch
from torch.utils.data import Dataset

PICTURES = 2000
KINDS = 10
SIDE = 32


class Leaves(Dataset):
    """A batch by a list of indices: pictures, and their kinds."""

    def __init__(self):
        chance = torch.Generator().manual_seed(0)
        self.kinds = torch.randint(0, KINDS, (PICTURES,), generator=chance)
        shades = torch.linspace(60, 190, KINDS)[self.kinds].view(-1, 1, 1, 1)
        noise = 60 * torch.rand(PICTURES, 3, SIDE, SIDE, generator=chance)
        self.pictures = (shades + noise).to(torch.uint8)

    def __len__(self):
        return PICTURES

    def __getitem__(self, indices):
        return self.pictures[indices].float() / 127.5 - 1, self.kinds[indices]
