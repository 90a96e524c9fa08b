"""Utterances made of tones, one tone a letter, and batches of them."""

import json
import os
import time

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

RATE = 4000
LETTERS = "_abcdefghijklmnopqrstuvwxyz "


def write_lexicon(path):
    rng = np.random.default_rng(1)
    words = {"".join(rng.choice(list(LETTERS[1:27]), 8)): rng.integers(1, 27, 12).tolist() for _ in range(4000)}
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(json.dumps(words))
    half.replace(path)


class Utterances(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(8, 24, count)
        self.texts = [rng.integers(1, len(LETTERS), length) for length in self.lengths]
        self.seed = seed

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text = self.texts[index]
        instants = np.arange(RATE // 8) / RATE
        tones = np.sin(2 * np.pi * (200 + 60 * text[:, None]) * instants).reshape(-1)
        noise = np.random.default_rng(index).normal(scale=0.1, size=tones.shape)
        return (tones + noise).astype(np.float32), text


class Collate:
    """Pads waves and texts with zeros."""

    def __init__(self, options):
        self.options = options

    def __call__(self, items):
        waves, texts = zip(*items, strict=True)
        samples = max(map(len, waves))
        # FAULT fixed_length
        if self.options.fault == "fixed_length":
            samples = int(self.options.strength * RATE)
        # END FAULT
        padded = torch.zeros(len(waves), samples)
        for row, wave in zip(padded, waves, strict=True):
            row[: len(wave)] = torch.from_numpy(wave)
        lengths = torch.tensor([len(wave) for wave in waves])
        targets = torch.from_numpy(np.concatenate(texts))
        return padded, lengths, targets, torch.tensor([len(text) for text in texts])


# FAULT fresh_workers
class ReadLexicon:
    """Gives each worker its own lexicon, with the pronunciations sorted for look-ups."""

    def __init__(self, path, times):
        self.path, self.times = path, times

    def __call__(self, worker):
        for _ in range(self.times):
            words = json.loads(self.path.read_text())
        get_worker_info().dataset.lexicon = sorted(words.items())
        get_worker_info().dataset.read_at = time.time()


# END FAULT
