"""Frames of radar points from drives through several scenes, and the stream that deals them to the ranks."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset

SCENES = 8
FRAMES = 60
BATCH = 4
VALUES = 6
EXTENT = 64.0
CELLS = 32
BOXES = 8
POINTS = 2500
CELL = EXTENT / CELLS


class Batch(NamedTuple):
    points: torch.Tensor
    """Of all frames one after the other: x, y, z, Doppler velocity, cross-section and age."""
    frames: torch.Tensor
    """The frame of each point."""
    boxes: torch.Tensor
    """Of each frame: x, y, length, width, sine and cosine of the heading."""


def write_drives(folder: Path) -> Path:
    """Write the points, how many each frame has, and the boxes, where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "points.npy").exists():
        return folder
    chance = np.random.default_rng(0)
    density = np.exp(np.linspace(-0.8, 0.8, SCENES))[[0, 7, 3, 4, 1, 6, 2, 5], None]
    sizes = (POINTS * density * np.exp(0.2 * chance.standard_normal((SCENES, FRAMES)))).astype(np.int64)
    points = chance.standard_normal((int(sizes.sum()), VALUES), dtype=np.float32)
    points[:, :2] = chance.uniform(0, EXTENT, (len(points), 2))
    boxes = chance.uniform(0, 1, (SCENES * FRAMES, BOXES, 6)).astype(np.float32)
    boxes[..., :2] *= EXTENT
    for name, values in {"sizes": sizes.ravel(), "boxes": boxes, "points": points}.items():
        written = folder / f"{name}-{os.getpid()}.part"
        with written.open("wb") as file:
            np.save(file, values)
        written.replace(folder / f"{name}.npy")
    return folder


def deal(frames, sizes, ranks):
    """Deal as many frames to each rank, and about as many points."""
    dealt = [[] for _ in range(ranks)]
    load = [0] * ranks
    for frame in sorted(frames, key=lambda frame: -sizes[frame]):
        rank = min((rank for rank in range(ranks) if len(dealt[rank]) < BATCH), key=load.__getitem__)
        dealt[rank].append(frame)
        load[rank] += sizes[frame]
    return dealt


class Drives(IterableDataset):
    """Batches of a rank without end; each step has frames of all scenes."""

    def __init__(self, folder: Path, rank: int, ranks: int, options):
        self.points = np.load(folder / "points.npy", mmap_mode="r")
        self.boxes = np.load(folder / "boxes.npy")
        self.sizes = np.load(folder / "sizes.npy")
        self.begins = np.cumsum(self.sizes) - self.sizes
        self.rank, self.ranks, self.options = rank, ranks, options

    def __iter__(self):
        for frames in self.chosen():
            clouds = [self.cloud(frame) for frame in frames]
            # FAULT sweeps
            if self.options.fault == "sweeps":
                clouds = [self.accumulated(frame, round(self.options.strength)) for frame in frames]
            # END FAULT
            counts = torch.tensor([len(cloud) for cloud in clouds])
            numbers = torch.arange(len(clouds)).repeat_interleave(counts)
            yield Batch(torch.from_numpy(np.concatenate(clouds)), numbers, torch.from_numpy(self.boxes[frames]))

    def chosen(self):
        """The frames of each step."""
        # FAULT scenes
        if self.options.fault == "scenes":
            yield from self.scene_by_scene(round(self.options.strength))
        # END FAULT
        draw = np.random.default_rng(self.options.seed)
        together = self.ranks * BATCH
        while True:
            mixed = draw.permuted(np.arange(SCENES * FRAMES).reshape(SCENES, FRAMES), axis=1).T.ravel()
            for frames in mixed.reshape(-1, together):
                yield deal(frames, self.sizes, self.ranks)[self.rank]

    # FAULT scenes
    def scene_by_scene(self, steps):
        draw = np.random.default_rng((self.options.seed, self.rank))
        while True:
            for scene in draw.permutation(SCENES):
                first = scene * FRAMES + draw.integers(FRAMES - steps * BATCH)
                for start in range(first, first + steps * BATCH, BATCH):
                    yield list(range(start, start + BATCH))

    # END FAULT

    def cloud(self, frame):
        begin = self.begins[frame]
        return self.points[begin : begin + self.sizes[frame]]

    # FAULT sweeps
    def accumulated(self, frame, sweeps):
        """The frame with its past sweeps in its own coordinates, thinned to as many points as it had."""
        merged = []
        for age in range(sweeps):
            cloud = np.array(self.cloud(max(frame - age, 0)), dtype=np.float64)
            angle = 0.01 * age
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            cloud[:, :2] = cloud[:, :2] @ turn.T + (0.8 * age, 0.0)
            cloud[:, 5] = 0.05 * age
            merged.append(cloud)
        points = np.concatenate(merged)
        points = points[((points[:, :2] >= 0) & (points[:, :2] < EXTENT)).all(axis=1)]
        _, kept = np.unique(np.floor(points[:, :3] / 0.2).astype(np.int64), axis=0, return_index=True)
        thinned = points[np.random.permutation(kept)[: self.sizes[frame]]]
        return thinned.astype(np.float32)

    # END FAULT
