"""Pictures of written lines, in batches of lines as long."""

import torch
from torch.utils.data import Dataset

LETTERS = 30
"""0 fills up, 1 begins a line."""
HEIGHT, GLYPH = 16, 8
SHORTEST, LONGEST = 8, 32
BATCHES = 120


class Batches:
    """Numbers of batches, as a sampler gives them."""

    def __init__(self, seed):
        self.order = torch.randperm(BATCHES, generator=torch.Generator().manual_seed(seed)).tolist()

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return BATCHES


class Lines(Dataset):
    """A batch by its number: pictures of shape (batch, 1, HEIGHT, GLYPH * letters), and their letters."""

    def __init__(self, batch, rank, options):
        self.batch, self.rank = batch, rank
        self.glyphs = torch.rand(LETTERS, HEIGHT, GLYPH, generator=torch.Generator().manual_seed(0))
        self.fault, self.strength = options.fault, options.strength

    def __len__(self):
        return BATCHES

    def __getitem__(self, number):
        chance = torch.Generator().manual_seed(1000 * self.rank + number)
        letters = SHORTEST + number % (LONGEST - SHORTEST)
        text = torch.randint(2, LETTERS, (self.batch, letters), generator=chance)
        pictures = self.glyphs[text].permute(0, 2, 1, 3).flatten(2).unsqueeze(1)
        # FAULT pixels
        if self.fault == "pixels":
            many = round(self.strength * self.batch)
            slow = [with_more_contrast(picture) for picture in pictures[:many]]
            pictures = torch.cat([torch.stack(slow), pictures[many:]])
        # END FAULT
        return pictures, text


# FAULT pixels
def with_more_contrast(picture):
    rows = [[min(1.0, max(0.0, 1.5 * pixel - 0.25)) for pixel in row] for row in picture[0].tolist()]
    return torch.tensor(rows).unsqueeze(0)


# END FAULT
