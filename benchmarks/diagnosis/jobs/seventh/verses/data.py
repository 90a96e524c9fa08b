"""Verses as tokens."""

import random

import torch
from model import LENGTH, WORDS

VERSES = 2000
LETTERS = "etaoinshrdlu "


def make_tokens():
    return torch.randint(0, WORDS, (VERSES, LENGTH + 1), generator=torch.Generator().manual_seed(0))


# FAULT tokenise
class Tokeniser:
    """Joins the pairs of letters that it knows, the first known ones first."""

    def __init__(self):
        chance = random.Random(0)
        self.texts = ["".join(chance.choices(LETTERS, k=3 * LENGTH)) for _ in range(200)]
        pairs = [first + second for first in LETTERS for second in LETTERS]
        self.numbers = {part: number for number, part in enumerate([*LETTERS, *pairs])}
        self.pairs = pairs[::8]

    def tokens(self, text):
        parts = list(text)
        for pair in self.pairs:
            joined, at = [], 0
            while at < len(parts):
                together = "".join(parts[at : at + 2])
                joined.append(together if together == pair else parts[at])
                at += 2 if together == pair else 1
            parts = joined
        return [self.numbers.get(part, 0) for part in parts][: LENGTH + 1]


# END FAULT
