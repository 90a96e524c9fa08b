"""Molecules drawn at random: where their atoms lie, which are near each other, and an energy."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

KINDS = 5
NEAR = 2.5


@dataclass(frozen=True)
class Molecule:
    kinds: np.ndarray
    places: np.ndarray
    edges: np.ndarray
    """Pairs of atoms that are near each other, both ways round: 2 x edges."""
    energy: float


@dataclass(frozen=True)
class Batch:
    kinds: torch.Tensor
    places: torch.Tensor
    edges: torch.Tensor
    owner: torch.Tensor
    """Of each atom, the number of its molecule."""
    energies: torch.Tensor


def make_molecules(folder: Path, count: int = 1024) -> list[Molecule]:
    """The molecules of a folder's file; made if it is not there."""
    path = folder / "molecules.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(8)
        atoms = draw.integers(10, 31, count)
        places = [draw.uniform(0, 1.7 * size ** (1 / 3), (size, 3)) for size in atoms]
        unfinished = folder / f"molecules.{os.getpid()}.npz"
        np.savez(
            unfinished,
            atoms=atoms,
            kinds=draw.integers(0, KINDS, atoms.sum()),
            places=np.concatenate(places).astype(np.float32),
            energies=draw.normal(size=count).astype(np.float32),
        )
        unfinished.rename(path)
    with np.load(path) as file:
        atoms, kinds, places, energies = (file[name] for name in ("atoms", "kinds", "places", "energies"))
    ends = np.cumsum(atoms)
    molecules = []
    for start, end, energy in zip(ends - atoms, ends, energies, strict=True):
        apart = np.linalg.norm(places[start:end, None] - places[None, start:end], axis=-1)
        edges = np.stack(np.nonzero((apart < NEAR) & (apart > 0)))
        molecules.append(Molecule(kinds[start:end], places[start:end], edges, float(energy)))
    return molecules


class Molecules(Dataset):
    def __init__(self, molecules: list[Molecule], fault: str = "none", strength: float = 0):
        self.molecules = molecules
        self.fault = fault
        self.strength = strength

    def __len__(self) -> int:
        return len(self.molecules)

    def __getitem__(self, index: int) -> Molecule:
        return self.molecules[index]

    def collate(self, molecules: list[Molecule]) -> Batch:
        sizes = np.array([len(molecule.kinds) for molecule in molecules])
        starts = np.cumsum(sizes) - sizes
        edges = [molecule.edges + start for molecule, start in zip(molecules, starts, strict=True)]
        # FAULT find_edges
        if self.fault == "find_edges":
            # Those of the file are not trusted: they are found again, one pair of atoms after the other.
            for number in range(round(len(molecules) * self.strength)):
                places = molecules[number].places.tolist()
                found = []
                for one, place in enumerate(places):
                    for other, place_of_other in enumerate(places):
                        apart = sum((a - b) ** 2 for a, b in zip(place, place_of_other, strict=True)) ** 0.5
                        if 0 < apart < NEAR:
                            found.append((one + starts[number], other + starts[number]))
                edges[number] = np.array(found).reshape(-1, 2).T
        # END FAULT
        return Batch(
            torch.from_numpy(np.concatenate([molecule.kinds for molecule in molecules])),
            torch.from_numpy(np.concatenate([molecule.places for molecule in molecules])),
            torch.from_numpy(np.concatenate(edges, axis=1)),
            torch.from_numpy(np.repeat(np.arange(len(molecules)), sizes)),
            torch.tensor([molecule.energy for molecule in molecules]),
        )


class Shard(Sampler):
    """A rank's share of the molecules, shuffled anew each epoch."""

    def __init__(self, data: Molecules, rank: int, world: int, seed: int, uneven: bool, strength: float):
        self.order = np.arange(rank, len(data), world)
        self.draw = np.random.default_rng(seed)
        # FAULT big_molecules
        if uneven:
            # The file is sorted by size, and this rank got its end.
            sizes = np.array([len(molecule.kinds) for molecule in data.molecules])
            largest = np.argsort(sizes)[-round(len(data) * strength) :]
            self.order = self.draw.permutation(largest)
        # END FAULT

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw.permutation(self.order).tolist())

    def __len__(self) -> int:
        return len(self.order)


def make_loader(data: Molecules, shard: Shard) -> DataLoader:
    return DataLoader(data, batch_size=32, sampler=shard, collate_fn=data.collate, drop_last=True)
