"""Talks of many lengths, in batches of talks about as long."""

import torch
from torch.utils.data import Dataset

TALKS = 1600
WORDS = 512
SHORTEST, LONGEST = 48, 96
PAD = 0


class Talks(Dataset):
    """A batch by its number: tokens, filled up to one length, of shape (batch, length)."""

    def __init__(self, batch, rank, ranks, options):
        chance = torch.Generator().manual_seed(0)
        lengths = torch.randint(SHORTEST, LONGEST, (TALKS,), generator=chance).sort().values
        talks = [torch.randint(1, WORDS, (int(length),), generator=chance) for length in lengths]
        both = [talks[first : first + batch * ranks] for first in range(0, TALKS, batch * ranks)]
        self.batches = [some[rank::ranks] for some in both]
        self.fault, self.strength = options.fault, options.strength

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        talks = self.batches[number]
        length = max(map(len, talks))
        # FAULT padding
        if self.fault == "padding":
            length = round(self.strength)  # what the model can hold
        # END FAULT
        tokens = torch.full((len(talks), length), PAD)
        for row, talk in enumerate(talks):
            tokens[row, : len(talk)] = talk
        return tokens
