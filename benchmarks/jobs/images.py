"""Train on image files: real JPEGs, decoded by Pillow; the accelerator, and on request the storage, are emulated by sleeps.

python -m benchmarks.jobs.images --files FOLDER [--workers N] [--prefetch N] [--device-ms MS] [--store-ms MS]
    [--cached SHARE] [--size PIXELS] [--batch N] [--steps N] [--cold]
"""

import argparse
import itertools
import os
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FILES = 512


class Images(Dataset[Tensor]):
    """JPEG files, decoded and made smaller. A file behind the first `cached` ones takes `store_ms` longer to read."""

    def __init__(self, paths: list[Path], store_ms: float, cached: int) -> None:
        self.paths, self.store_ms, self.cached = paths, store_ms, cached

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        data = self.paths[index].read_bytes()
        if self.store_ms and index >= self.cached:
            time.sleep(self.store_ms / 1e3)
        image = Image.open(BytesIO(data))
        image.load()
        small = np.asarray(image.resize((64, 64)), np.float32)
        return torch.from_numpy(small / 255).permute(2, 0, 1)


def files(folder: Path, size: int) -> list[Path]:
    """The image files of `folder`, made if there are none. Sides scatter around `size` pixels, so batches do, too."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(FILES):
        side = int(size * rng.lognormal(0, 0.3))
        if not (path := folder / f"{number:04d}.jpg").exists():
            coarse = Image.fromarray(rng.integers(0, 256, (side // 8 + 1, side // 8 + 1, 3), np.uint8))
            coarse.resize((side, side)).save(path, quality=90)
    return sorted(folder.glob("*.jpg"))


def forget(paths: list[Path]) -> None:
    """Drop the files from the page cache."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--device-ms", type=float, default=20)
    parser.add_argument("--store-ms", type=float, default=0)
    parser.add_argument("--cached", type=float, default=0)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--cold", action="store_true", help="read each epoch from the disk")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths = files(options.files, options.size)
    loader = DataLoader(
        Images(paths, options.store_ms, round(options.cached * len(paths))),
        batch_size=options.batch,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        prefetch_factor=options.prefetch if options.workers else None,
        persistent_workers=options.workers > 0,
    )
    model = nn.Conv2d(3, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    left = options.steps
    while left > 0:
        if options.cold:
            forget(paths)
        for batch in itertools.islice(loader, left):
            optimizer.zero_grad()
            model(batch).mean().backward()
            time.sleep(options.device_ms / 1e3)
            optimizer.step()
            left -= 1


if __name__ == "__main__":
    main()
