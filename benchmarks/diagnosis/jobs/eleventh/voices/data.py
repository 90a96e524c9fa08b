"""Recordings of synthetic speakers, and clips of them."""

import os

import numpy as np
import torch

SPEAKERS = 32
RECORDINGS = 4
RATE = 8000
SECONDS = 3


def recordings(folder):
    """All recordings as int16, [speaker, recording, sample]; written to the folder once."""
    file = folder / "recordings.npy"
    if not file.exists():
        made = folder / f"{os.getpid()}.npy"
        np.save(made, _speak())
        made.rename(file)
    return torch.from_numpy(np.load(file))


def _speak():
    chance = np.random.default_rng(7)
    times = np.arange(SECONDS * RATE, dtype=np.float32) / RATE
    out = np.empty((SPEAKERS, RECORDINGS, len(times)), np.int16)
    for speaker in range(SPEAKERS):
        pitch, formants = chance.uniform(90, 240), chance.dirichlet(np.full(6, 0.8))
        for recording in range(RECORDINGS):
            melody = np.cumsum(1 + 0.05 * np.sin(2 * np.pi * chance.uniform(0.5, 3) * times)) / RATE
            voice = sum(formants[k] * np.sin(2 * np.pi * (k + 1) * pitch * melody) for k in range(6))
            out[speaker, recording] = 6000 * voice + 300 * chance.standard_normal(len(times), np.float32)
    return out


class Clips:
    """Draws batches: some speakers, two clips of each."""

    def __init__(self, waves, seed):
        self.waves = waves
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, speakers, length):
        """Waves [2 * speakers, length] and who speaks."""
        who = torch.randperm(SPEAKERS, generator=self.generator)[:speakers].repeat_interleave(2)
        which = torch.randint(RECORDINGS, (len(who),), generator=self.generator)
        start = torch.randint(self.waves.shape[2] - length + 1, (len(who), 1), generator=self.generator)
        clips = self.waves[who[:, None], which[:, None], start + torch.arange(length)].float() / 32768
        loudness = 0.5 + torch.rand(len(who), 1, generator=self.generator)
        return loudness * clips, who
