"""What a training job needs to take part in `benchmarks.loaders`: this page is all that its author has to know.

A job is a module that runs as `python -m MODULE OPTIONS` and trains any model, in one process, on samples that it decodes
from files. It is made of the pieces of this module:

    from benchmarks.loaders.kit import (
        SampleFiles, batches, behind_cache, device, loader_options, made, parse, prepared
    )

    def main() -> None:
        settings = parse(__doc__)
        torch.manual_seed(0)
        torch.set_num_threads(1)
        paths = [made(settings.files / f"{n:04d}.jpg", lambda n=n: content(n)) for n in range(192)]
        files = SampleFiles(paths, settings)
        dataset = MyDataset(behind_cache(files, settings))           # its __getitem__ decodes files[index], bytes
        dataset = prepared(dataset, files, settings)
        loader = DataLoader(dataset, batch_size=8, **loader_options(dataset, files, settings))
        ...                                                          # any model and optimizer
        for batch in batches(loader, files, settings):
            optimizer.zero_grad()
            loss = ...                                               # from the batch and the model
            loss.backward()
            device(loss, settings)                                   # the emulated accelerator
            optimizer.step()

Rules:

- There are 96 to 256 files. `content(n)` makes the bytes of file n, the same each time: content of a compressed format
  (images, audio, text, records) of 20 to 200 KB, and of various sizes. `made` writes a file unless it is there.
- The dataset is map-style: item `index` comes from `files[index]` and from nothing else that takes time. It really decodes
  the bytes, and transforms them in a way that its kind of data needs. Decoding a batch takes 5 to 40 ms of one core, and
  may differ between samples.
- The batch size is fixed, 4 to 16. A `collate_fn` of the job's own is allowed.
- The model is small: forward, backward and update take less than 10 ms. `optimizer.step()` is called once per batch.
- The job has no further options, and does not sleep, read the clock or print. It needs no more than NumPy, PyTorch, Pillow
  and the standard library.

What the driver changes by OPTIONS, with their defaults:

    --files FOLDER   the folder of the sample files
    --workers 1      `num_workers`
    --prefetch 2     `prefetch_factor`
    --device-ms 15   time of a step on the emulated accelerator
    --store 1        speed of the emulated store
    --cached 0       share of the files in the page cache; the others are read from the disk, cold, and from the store
    --minio 0        share of the files' bytes that a `MinIOCache` between files and decoding holds; 0: there is none
    --ready 0        share of the samples that a `MinIOCache` after decoding holds; 0: there is none
    --shared FOLDER  the folder of a `SharedPreparation` of two jobs; without it, the job prepares all samples itself
    --in-order 1     whether batches are delivered in order (`in_order`)
    --slow-ms 0      time by which the store delays one file in sixteen
    --steps 96       number of steps

Emulated store: besides its real, cold read, a file takes `_LATENCY_S` + size / `_BYTES_PER_S`, over the store's speed.
Emulated accelerator: a sleep of `--device-ms`, as an operation of torch, so that the profiler sees it.
Epochs follow each other without a border: the loader reads all files in a random order, then in another one, and so on.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, library
from torch.utils.data import DataLoader, Dataset, Sampler

from esprof.data import MinIOCache, SharedPreparation

DEVICE = "emulated::device"
"""Name of the accelerator's operation in profiles."""

_LATENCY_S, _BYTES_PER_S = 3e-3, 20e6
_ONE_IN = 16
"""One file in so many is a slow one."""
_SHARED_BYTES = 64 << 20


@dataclass(frozen=True)
class Settings:
    """The options of a job."""

    files: Path
    workers: int
    prefetch: int
    device_ms: float
    store: float
    cached: float
    minio: float
    ready: float
    shared: Path | None
    in_order: bool
    slow_ms: float
    steps: int


def made(path: Path, content: Callable[[], bytes]) -> Path:
    """The file `path`, with `content` if it is not there yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".half")
        half.write_bytes(content())
        half.replace(path)
    return path


def parse(description: str | None) -> Settings:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, required=True, help="folder of the sample files")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--device-ms", type=float, default=15)
    parser.add_argument("--store", type=float, default=1)
    parser.add_argument("--cached", type=float, default=0)
    parser.add_argument("--minio", type=float, default=0)
    parser.add_argument("--ready", type=float, default=0)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--in-order", type=lambda text: text == "1", default=True)
    parser.add_argument("--slow-ms", type=float, default=0)
    parser.add_argument("--steps", type=int, default=96)
    return Settings(**vars(parser.parse_args()))


class SampleFiles:
    """The content of files, by index. A share of them, evenly spread, is not in the page cache, and comes from the store."""

    def __init__(self, paths: Sequence[Path], settings: Settings) -> None:
        self.paths, self._speed, self._slow_s = list(paths), settings.store, settings.slow_ms / 1e3
        share = 1 - settings.cached
        self._is_cold = [int((number + 1) * share) > int(number * share) for number in range(len(paths))]
        for index, path in enumerate(paths):
            with path.open("rb") as file:
                os.fsync(file.fileno())  # Pages that are not on the disk yet cannot be dropped.
            self._read(index)  # Warms those that are cached.

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        data = self._read(index)
        if self._is_cold[index]:
            delay_s = self._slow_s if index % _ONE_IN == 0 else 0
            time.sleep((_LATENCY_S + len(data) / _BYTES_PER_S) / self._speed + delay_s)
        return data

    @property
    def total_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def _read(self, index: int) -> bytes:
        """Read a file, and drop it from the page cache unless it is cached."""
        with self.paths[index].open("rb") as file:
            data = file.read()
            if self._is_cold[index]:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return data


def behind_cache(files: SampleFiles, settings: Settings) -> SampleFiles | MinIOCache:
    """`files`, behind a `MinIOCache` if the settings ask for one."""
    return MinIOCache(files, int(settings.minio * files.total_bytes)) if settings.minio else files


class Sized:
    """`dataset`, of the length of `files`."""

    def __init__(self, dataset: Dataset[Any], files: SampleFiles) -> None:
        self._dataset, self._count = dataset, len(files)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def prepared(dataset: Dataset[Any], files: SampleFiles, settings: Settings) -> Any:
    """`dataset`, behind a cache of its samples or with shared preparation if the settings ask for one."""
    if settings.shared is not None:
        shared = SharedPreparation(Sized(dataset, files), _SHARED_BYTES, settings.shared)
        assert shared.wait_for_jobs(2)
        return shared
    if settings.ready:
        return MinIOCache(Sized(dataset, files), _SHARED_BYTES, items=int(settings.ready * len(files)))
    return dataset


class Shuffled(Sampler[Any]):
    """All samples in a random order, then in another one, and so on without end."""

    def __init__(self, dataset: Any, count: int) -> None:
        self._dataset, self._count = dataset, count

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._dataset, SharedPreparation):
            order = self._dataset.order()
            while True:
                yield from order
        generator = torch.Generator().manual_seed(0)
        while True:
            yield from torch.randperm(self._count, generator=generator).tolist()


def loader_options(dataset: Any, files: SampleFiles, settings: Settings) -> dict[str, Any]:
    """The options of a DataLoader that the settings determine: its sampler, workers, prefetching, and order."""
    options: dict[str, Any] = {"sampler": Shuffled(dataset, len(files)), "num_workers": settings.workers}
    if settings.workers:
        options |= {"prefetch_factor": settings.prefetch, "in_order": settings.in_order}
    return options


def batches(loader: DataLoader[Any], files: SampleFiles, settings: Settings) -> Iterator[Any]:
    """The batches of all steps.

    At the end, prints a JSON line: `per_epoch`, the number of batches that read all files, and `step_ms`, the time of each
    step from the end of the step before.
    """
    assert loader.batch_size is not None
    step_ms: list[float] = []
    before = time.perf_counter()
    for batch in itertools.islice(loader, settings.steps):
        yield batch
        now = time.perf_counter()
        step_ms.append(round(1e3 * (now - before), 3))
        before = now
    print(json.dumps({"per_epoch": -(-len(files) // loader.batch_size), "step_ms": step_ms}), flush=True)


def device(after: Tensor, settings: Settings) -> None:
    """Take the time of a step on the emulated accelerator, once `after` is known."""
    _device(after.detach(), settings.device_ms)


@library.custom_op(DEVICE, mutates_args=())
def _device(after: Tensor, ms: float) -> Tensor:
    time.sleep(ms / 1e3)
    return after.new_empty(0)
