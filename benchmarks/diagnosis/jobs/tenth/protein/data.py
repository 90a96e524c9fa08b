"""Chains of residues with their coordinates, in compressed shards, and how they are read."""

import os
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

RESIDUES = 20
MASK = 20
LENGTH = 56
MASKED = 0.15
NOISE = 0.5
SHARDS = 8
CHAINS = 80
STORED = 384


def write_shards(folder: Path, seed: int) -> list[Path]:
    """Random walks of 3.8 Å a step, whose turns depend on the residue."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = [folder / f"chains-{number:02}.npz" for number in range(SHARDS)]
    turns = np.random.default_rng(7).normal(size=(RESIDUES, 3))
    for number, shard in enumerate(shards):
        if shard.exists():
            continue
        chance = np.random.default_rng((seed, number))
        residues = chance.integers(RESIDUES, size=(CHAINS, STORED))
        steps = turns[residues] + 0.3 * chance.normal(size=(CHAINS, STORED, 3))
        steps *= 3.8 / np.linalg.norm(steps, axis=-1, keepdims=True)
        unfinished = shard.with_suffix(f".{os.getpid()}.part")
        with unfinished.open("wb") as file:
            np.savez_compressed(
                file, residues=residues.astype(np.int8), coordinates=steps.cumsum(axis=1).astype(np.float32)
            )
        unfinished.rename(shard)
    return shards


def read_shard(shard: Path) -> dict[str, np.ndarray]:
    with np.load(shard) as arrays:
        return {name: arrays[name] for name in arrays}


class Chains(Dataset):
    """Crops of chains; some residues are masked, and all coordinates are disturbed."""

    def __init__(self, shards: list[Path]):
        self.shards = shards
        self.read = cache(read_shard)

    # FAULT shards
    def keep(self, shards: int) -> None:
        """Bound how many shards are held in memory."""
        self.read = lru_cache(maxsize=shards)(read_shard)

    # END FAULT

    def __len__(self) -> int:
        return len(self.shards) * CHAINS

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        shard = self.read(self.shards[number // CHAINS])
        row = number % CHAINS
        first = int(torch.randint(STORED - LENGTH, ()))
        residues = torch.from_numpy(shard["residues"][row, first : first + LENGTH]).long()
        coordinates = torch.from_numpy(shard["coordinates"][row, first : first + LENGTH])
        coordinates = coordinates - coordinates.mean(dim=0)
        masked = torch.rand(LENGTH) < MASKED
        return {
            "residues": residues,
            "masked": masked,
            "seen": residues.masked_fill(masked, MASK),
            "coordinates": coordinates,
            "noisy": coordinates + NOISE * torch.randn_like(coordinates),
        }
