"""Clips of songs in one file."""

import time

import numpy as np
import torch
from torch.utils.data import Dataset

CLIPS = 1200
SAMPLES = 8000


def make_clips(file):
    rng = np.random.default_rng(0)
    clips = np.lib.format.open_memmap(file, mode="w+", dtype=np.int16, shape=(CLIPS, SAMPLES))
    clips[:] = rng.integers(-8000, 8000, clips.shape)
    clips.flush()


class Clips(Dataset):
    def __init__(self, file, options, rank):
        self.clips = np.load(file, mmap_mode="r")
        self.fault, self.strength = options.fault, options.strength
        self.is_far = rank == options.rank

    def __len__(self):
        return CLIPS

    def __getitem__(self, index):
        # FAULT far_files
        if self.fault == "far_files" and self.is_far:
            time.sleep(self.strength / 1000)  # a file server that this host alone reads from
        # END FAULT
        return torch.from_numpy(self.clips[index] / np.float32(32768))
