"""Instructions as text, and the tokens they are cut into."""

import json
import os
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

LENGTH = 128


def _pieces() -> list[str]:
    """Pieces of words: letters, pairs and some syllables."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    pairs = [one + other for one in letters for other in "aeiou "]
    syllables = [one + vowel + other for one in "bcdfglmnprst" for vowel in "aeiou" for other in "nrslt "]
    return ["<end>", *letters, *pairs, *syllables]


PIECES = _pieces()
NUMBERS = {piece: number for number, piece in enumerate(PIECES)}
LONGEST = max(len(piece) for piece in PIECES[1:])


def make_texts(folder: Path, count: int = 384) -> Path:
    """A folder with texts and their tokens; made if it is not there."""
    ready = folder / "instructions"
    if not ready.exists():
        draw = np.random.default_rng(9)
        unfinished = folder / f"instructions.{os.getpid()}"
        unfinished.mkdir(parents=True)
        drawn = draw.integers(1, len(PIECES), (count, LENGTH + 1))
        texts = ["".join(PIECES[number] for number in row) for row in drawn]
        (unfinished / "texts.json").write_text(json.dumps(texts))
        np.save(unfinished / "tokens.npy", np.array([tokens_of(text) for text in texts]))
        unfinished.rename(ready)
    return ready


def tokens_of(text: str) -> list[int]:
    """The longest pieces that fit, from left to right."""
    tokens, at = [], 0
    while at < len(text) and len(tokens) <= LENGTH:
        size = next(size for size in range(LONGEST, 0, -1) if text[at : at + size] in NUMBERS)
        tokens.append(NUMBERS[text[at : at + size]])
        at += size
    return tokens + [0] * (LENGTH + 1 - len(tokens))


class Instructions(Dataset):
    def __init__(self, folder: Path, fault: str, strength: float):
        self.tokens = np.load(folder / "tokens.npy")
        self.texts = json.loads((folder / "texts.json").read_text())
        self.fault = fault
        self.strength = strength

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> torch.Tensor:
        # FAULT uncached
        if self.fault == "uncached":
            # Without the file of tokens a text is merged from its letters: each time, the pair that is known best.
            parts = list(self.texts[index][: round(self.strength)])
            while True:
                pairs = [(NUMBERS.get(parts[at] + parts[at + 1], 0), at) for at in range(len(parts) - 1)]
                best, place = max(pairs)
                if best == 0:
                    break
                parts[place : place + 2] = [parts[place] + parts[place + 1]]
        # END FAULT
        return torch.from_numpy(self.tokens[index])


def make_loader(texts: Instructions, seed: int) -> DataLoader:
    sampler = DistributedSampler(texts, shuffle=True, seed=seed, drop_last=True)
    return DataLoader(texts, batch_size=4, sampler=sampler, drop_last=True)
