"""Recognise speakers: recordings of various lengths, compressed without loss, turned into spectrograms and padded."""

import zlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from benchmarks.loaders.kit import SampleFiles, batches, behind_cache, device, loader_options, made, parse, prepared

FILES, SPEAKERS = 192, 16
RATE, SECONDS = 16_000, 2.5
"""Samples per second, and median length of a recording."""
WINDOW, HOP, BANDS = 512, 128, 64


class Recordings(Dataset[tuple[Tensor, int]]):
    """Logarithmic spectrograms, (frames, bands)."""

    def __init__(self, files: SampleFiles) -> None:
        self.files = files
        self._window = np.hanning(WINDOW).astype(np.float32)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        steps = np.frombuffer(zlib.decompress(self.files[index]), np.int16)
        sound = np.cumsum(steps, dtype=np.int16).astype(np.float32) / 2**15
        frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP] * self._window
        power = np.abs(np.fft.rfft(frames)[:, 1:]) ** 2
        bands = power.reshape(len(power), BANDS, -1).mean(axis=2)
        return torch.from_numpy(np.log(bands + 1e-6).astype(np.float32)), index % SPEAKERS


def recording(number: int) -> bytes:
    """A few tones that fade in and out, with noise; what is compressed are the differences of its values."""
    rng = np.random.default_rng(number)
    time = np.arange(int(RATE * SECONDS * np.exp(rng.normal(0, 0.3)))) / RATE
    tones = sum(
        np.sin(2 * np.pi * (f * time + rng.uniform())) * np.sin(time * s) for f, s in rng.uniform(1, 900, (5, 2))
    )
    sound = (4000 * tones + rng.normal(0, 60, len(time))).astype(np.int16)
    return zlib.compress(np.diff(sound, prepend=np.int16(0)).tobytes())


def padded(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """(spectrograms, padded to the longest one; speakers)."""
    return pad_sequence([one for one, _ in samples], batch_first=True), torch.tensor([who for _, who in samples])


def main() -> None:
    settings = parse(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths = [
        made(settings.files / f"{number:04d}.z", lambda number=number: recording(number)) for number in range(FILES)
    ]
    files = SampleFiles(paths, settings)
    dataset = prepared(Recordings(behind_cache(files, settings)), files, settings)
    loader = DataLoader(dataset, batch_size=6, collate_fn=padded, **loader_options(dataset, files, settings))
    model = nn.Sequential(nn.Linear(BANDS, 32), nn.ReLU(), nn.Linear(32, SPEAKERS))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for spectrograms, speakers in batches(loader, files, settings):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(spectrograms).mean(dim=1), speakers)
        loss.backward()
        device(loss, settings)
        optimizer.step()


if __name__ == "__main__":
    main()
