"""Spoken words: a WAV file a clip, with its label in the name."""

import os
import wave
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

RATE = 8000
WORDS = 30


def make_clips(folder: Path, clips: int = 1056) -> list[Path]:
    """The clips of a folder; made if it has none: tones whose pitch tells the word, with noise."""
    ready = folder / "clips"
    if not ready.exists():
        draw = np.random.default_rng(6)
        unfinished = folder / f"clips.{os.getpid()}"
        unfinished.mkdir(parents=True)
        time = np.arange(RATE) / RATE
        for number in range(clips):
            word = number % WORDS
            tone = np.sin(2 * np.pi * (200 + 40 * word) * time) + draw.normal(0, 0.3, RATE)
            with wave.open(str(unfinished / f"{number:04}-{word}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE)
                file.writeframes((tone * 8000).astype("<i2").tobytes())
        unfinished.rename(ready)
    return sorted(ready.iterdir())


class Clips(Dataset):
    """Clips of a second, shifted at random and with noise of a random loudness."""

    def __init__(self, paths: list[Path], fault: str = "none", strength: float = 0):
        self.paths = paths
        self.fault = fault
        self.strength = strength

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(RATE), dtype="<i2")
        clip = samples.astype(np.float32) / 32768
        # FAULT slow_worker
        worker = get_worker_info()
        if self.fault == "slow_worker" and worker is not None and worker.id == 1:
            # This worker got the clips with hum, of which one harmonic after the other is taken out, sample by sample.
            for _ in range(3 if index % 100 < 100 * self.strength else 0):
                before = after = 0.0
                filtered = []
                for sample in clip.tolist():
                    after = sample - before + 0.995 * after
                    before = sample
                    filtered.append(after)
                clip = np.array(filtered, dtype=np.float32)
        # END FAULT
        # FAULT resample
        if self.fault == "resample" and index % 100 < 100 * self.strength:
            # Recorded at another rate: a windowed sinc brings it to ours, and is computed anew for each clip.
            position = np.arange(RATE) * 0.9987
            nearest = np.minimum(position.astype(int), RATE - 1)
            resampled = np.zeros(RATE)
            reach = 2
            for tap in range(-reach, reach + 1):
                source = np.clip(nearest + tap, 0, RATE - 1)
                distance = position - source
                resampled += clip[source] * np.sinc(distance) * np.cos(np.pi * distance / (2 * reach + 2)) ** 2
            clip = resampled.astype(np.float32)
        # END FAULT
        clip = np.roll(clip, int(torch.randint(-800, 800, ())))
        noise = torch.randn(RATE).numpy() * float(torch.rand(())) * 0.05
        clip = clip + noise
        clip[1:] -= 0.97 * clip[:-1]
        return torch.from_numpy(clip).unsqueeze(0), int(path.stem.split("-")[1])


def make_loader(paths: list[Path], seed: int, fault: str, strength: float) -> DataLoader:
    workers = 2
    # FAULT no_workers
    if fault == "no_workers":
        workers = 0
    # END FAULT
    return DataLoader(
        Clips(paths, fault, strength),
        batch_size=48,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        prefetch_factor=3 if workers else None,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )
