"""Data sets whose samples show where they came from. They need no torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np

MB = 1 << 20
ITEM_BYTES = 8000


class Numbered:
    """Samples of 8 kB that hold their number; counts the reads of this process."""

    def __init__(self, items: int = 400) -> None:
        self.items, self.reads = items, 0

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        self.reads += 1
        return index, np.full(ITEM_BYTES // 8, index)


class Noisy(Numbered):
    """Samples that differ each time that they are prepared, as random transforms make them."""

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        self.reads += 1
        return index, os.urandom(ITEM_BYTES)


class Signalling(Numbered):
    """Sends `signal` to its own process while it prepares the sample `at`, in processes other than its maker's."""

    def __init__(self, items: int, at: int, signal: int) -> None:
        super().__init__(items)
        self.at, self.signal, self.maker = at, signal, os.getpid()

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        if index == self.at and os.getpid() != self.maker:
            os.kill(os.getpid(), self.signal)
        return super().__getitem__(index)


def numbers_of(batch: list[Any]) -> list[int]:
    """The numbers of samples of `Numbered`, each of which must be whole."""
    assert all((data == number).all() for number, data in batch)
    return [number for number, _ in batch]


def size_of(folder: str | Path) -> int:
    """Bytes that a folder takes up on its disk."""
    return sum(file.stat().st_blocks * 512 for file in Path(folder).iterdir())
