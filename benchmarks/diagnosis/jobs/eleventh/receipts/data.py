"""Lines of text on receipts: pictures of 32 rows, as wide as their text is long."""

import os
import zlib

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.,:-*%"
HEIGHT = 32
PITCH = 14
SHORTEST, LONGEST = 8, 28
LINES = 2400
FRAME = 4
"""Columns of a picture for each step of the recogniser."""


def prepare(folder):
    """Draw all lines side by side into one picture, where that is not there yet."""
    if (folder / "lines.npy").exists():
        return
    rng = np.random.default_rng(11)
    lengths = rng.integers(SHORTEST, LONGEST + 1, LINES)
    text = rng.integers(1, len(ALPHABET) + 1, lengths.sum())
    glyphs = np.kron(rng.integers(0, 2, (len(ALPHABET) + 1, 8, 6)), np.ones((3, 2))).astype(np.uint8)
    picture = np.full((HEIGHT, len(text), PITCH), 230, np.uint8)
    picture[4:28, :, 1:13] -= 180 * glyphs[text].transpose(1, 0, 2)
    picture -= rng.integers(0, 20, picture.shape, dtype=np.uint8)
    for name, array in (("lengths", lengths), ("text", text), ("lines", picture.reshape(HEIGHT, -1))):
        partial = folder / f"{name}.{os.getpid()}.npy"
        np.save(partial, array)
        partial.rename(folder / f"{name}.npy")


class Lines(Dataset):
    """Picture and text of each line; pictures are mapped, not read."""

    def __init__(self, folder):
        self.lengths = np.load(folder / "lengths.npy")
        self.text = torch.from_numpy(np.load(folder / "text.npy"))
        self.lines = np.load(folder / "lines.npy", mmap_mode="r")
        self.starts = np.concatenate(([0], np.cumsum(self.lengths)))

    def __len__(self):
        return len(self.lengths)

    def picture(self, index):
        return self.lines[:, PITCH * self.starts[index] : PITCH * self.starts[index + 1]]

    def __getitem__(self, index):
        text = self.text[self.starts[index] : self.starts[index + 1]]
        picture = torch.from_numpy(self.picture(index).astype(np.float32)) / 255
        contrast, brightness = np.random.uniform(0.8, 1.2), np.random.uniform(-0.1, 0.1)
        return (picture - 0.5) * contrast + brightness, text


# FAULT scans
class ScannedLines(Lines):
    """Cuts the lines out of the scans of their receipts."""

    def __init__(self, folder, lines_per_scan):
        super().__init__(folder)
        self.lines_per_scan = lines_per_scan
        self.scans = folder / f"scans-{lines_per_scan}"
        if not self.scans.exists():
            self.write_scans(folder)

    def write_scans(self, folder):
        partial = folder / f"scans.{os.getpid()}"
        partial.mkdir()
        for first in range(0, len(self), self.lines_per_scan):
            page = np.full((self.lines_per_scan, HEIGHT, PITCH * LONGEST), 230, np.uint8)
            for row, index in enumerate(range(first, min(first + self.lines_per_scan, len(self)))):
                picture = super().picture(index)
                page[row, :, : picture.shape[1]] = picture
            (partial / f"{first // self.lines_per_scan:05}.z").write_bytes(zlib.compress(page.tobytes(), 1))
        partial.rename(self.scans)

    def picture(self, index):
        number, row = divmod(index, self.lines_per_scan)
        scan = zlib.decompress((self.scans / f"{number:05}.z").read_bytes())
        page = np.frombuffer(scan, np.uint8).reshape(self.lines_per_scan, HEIGHT, -1)
        return page[row, :, : PITCH * self.lengths[index]]


# END FAULT


class Buckets(Sampler):
    """Batches of lines of like widths, of which all ranks have the same width at a time."""

    def __init__(self, lengths, batch, rank, world, seed):
        self.by_length = np.argsort(lengths, kind="stable")
        self.batch, self.rank, self.world, self.seed = batch, rank, world, seed
        self.own_share = 0.0

    def __len__(self):
        return len(self.by_length) // (self.batch * self.world)

    def __iter__(self):
        order = np.random.default_rng(self.seed).permutation(len(self))
        # FAULT shuffled
        if self.own_share:
            rng = np.random.default_rng((self.seed, self.rank))
            moved = np.flatnonzero(rng.random(len(order)) < self.own_share)
            order[moved] = order[rng.permutation(moved)]
        # END FAULT
        size = self.batch * self.world
        for number in order:
            yield self.by_length[number * size + self.rank : (number + 1) * size : self.world].tolist()


class Collate:
    """Pads pictures to the widest of their batch and joins their texts."""

    def __init__(self):
        self.least_width = 0

    def __call__(self, lines):
        widths = torch.tensor([picture.shape[1] for picture, _ in lines])
        width = int(widths.max())
        # FAULT canvas
        width = max(width, self.least_width)
        # END FAULT
        pictures = torch.zeros(len(lines), 1, HEIGHT, -(-width // FRAME) * FRAME)
        for row, (picture, _) in enumerate(lines):
            pictures[row, 0, :, : picture.shape[1]] = picture
        lengths = torch.tensor([len(text) for _, text in lines])
        return pictures, widths // FRAME, torch.cat([text for _, text in lines]), lengths
