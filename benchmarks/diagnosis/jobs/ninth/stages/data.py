"""Documents of made-up words, as text and as the numbers of their letters and pairs of letters."""

import os
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

DOCUMENTS = 240
LETTERS = "abcdefghijklmnopqrstuvwxyz ."
TOKENS = (*LETTERS, *(first + second for first in LETTERS for second in LETTERS))
NUMBERS = {token: number for number, token in enumerate(TOKENS)}
VOCABULARY = 1024


def tokenize(text: str) -> list[int]:
    """Numbers of the longest tokens that fit, from the text's begin to its end."""
    numbers = []
    while text:
        token = next(text[:length] for length in (2, 1) if text[:length] in NUMBERS)
        numbers.append(NUMBERS[token])
        text = text[len(token) :]
    return numbers


def prepare(folder: Path, length: int) -> None:
    """Write the documents and the first tokens of each, where they are not there yet."""
    chance = random.Random(0)
    words = ["".join(chance.choices(LETTERS[:26], k=chance.randint(2, 8))) for _ in range(300)]
    texts = [" ".join(chance.choices(words, k=800)) + "." for _ in range(DOCUMENTS)]
    tokens = np.array([tokenize(text[: 2 * length])[:length] for text in texts], dtype=np.int16)
    own = folder / f"{os.getpid()}.tmp"
    own.write_text("\n".join(texts))
    own.rename(folder / "documents.txt")
    with own.open("wb") as file:
        np.save(file, tokens)
    own.rename(folder / "tokens.npy")


class Tokens(Dataset):
    """The tokens that were prepared."""

    def __init__(self, folder: Path):
        self.tokens = np.load(folder / "tokens.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> Tensor:
        return torch.from_numpy(self.tokens[number].astype(np.int64))


# FAULT tokenizes
class Texts(Dataset):
    """Tokens of the documents' first letters, cut to one length."""

    def __init__(self, folder: Path, length: int, letters: int):
        self.texts = (folder / "documents.txt").read_text().splitlines()
        self.length = length
        self.letters = letters

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> Tensor:
        return torch.tensor(tokenize(self.texts[number][: self.letters])[: self.length])


# END FAULT


def open_documents(folder: Path, length: int, fault: str, strength: float) -> Dataset:
    # FAULT tokenizes
    if fault == "tokenizes":
        return Texts(folder, length, round(strength))
    # END FAULT
    return Tokens(folder)
