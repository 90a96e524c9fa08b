"""Pictures and what is said of them, as arrays of one file."""

import os
import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

WORDS = 800
SIDE = 32


def make_pairs(folder: Path, pairs: int = 1536) -> Path:
    """The file of pictures and captions; made if it is not there."""
    path = folder / "pairs.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(7)
        pictures = draw.integers(0, 256, (pairs, SIDE, SIDE, 3), dtype=np.uint8)
        captions = draw.integers(1, WORDS, (pairs, 16))
        lengths = draw.integers(8, 17, pairs)
        unfinished = folder / f"pairs.{os.getpid()}.npz"
        np.savez(unfinished, pictures=pictures, captions=captions, lengths=lengths)
        unfinished.rename(path)
    return path


class Pairs(Dataset):
    def __init__(self, path: Path, fault: str, strength: float, seed: int):
        with np.load(path) as file:
            self.pictures, self.captions, self.lengths = file["pictures"], file["captions"], file["lengths"]
        self.fault = fault
        self.strength = strength
        self.random = random.Random(seed)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        picture = self.pictures[index]
        # FAULT warp
        if self.fault == "warp" and self.random.random() < self.strength:
            # Bends the picture, one row of it after the other.
            phase, bend = self.random.random() * 6, self.random.uniform(1, 3)
            bent = np.empty_like(picture)
            for row in range(SIDE):
                source = np.arange(SIDE) + bend * np.sin(row / 5 + phase)
                left = np.clip(np.floor(source).astype(int), 0, SIDE - 2)
                share = np.clip(source - left, 0, 1)[:, None]
                bent[row] = picture[row, left] * (1 - share) + picture[row, left + 1] * share
            picture = bent
        # END FAULT
        if self.random.random() < 0.5:
            picture = picture[:, ::-1]
        return picture, self.captions[index, : self.lengths[index]]

    def collate(self, pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures as floats, and captions padded with word 0."""
        pictures = torch.from_numpy(np.stack([picture for picture, _ in pairs]))
        longest = max(len(caption) for _, caption in pairs)
        # FAULT full_context
        if self.fault == "full_context":
            longest = round(self.strength)
        # END FAULT
        words = torch.zeros(len(pairs), longest, dtype=torch.long)
        for row, (_, caption) in enumerate(pairs):
            words[row, : len(caption)] = torch.from_numpy(caption)
        return pictures.permute(0, 3, 1, 2).float().div_(255), words


def make_loader(pairs: Pairs, seed: int) -> DataLoader:
    sampler = DistributedSampler(pairs, shuffle=True, seed=seed, drop_last=True)
    return DataLoader(pairs, batch_size=32, sampler=sampler, collate_fn=pairs.collate, drop_last=True)
