"""Samples in files: written once, read one by one as a loader asks for them."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset

Sample = tuple[Tensor, Tensor]
"""Input and target."""


class FileSamples(Dataset[Sample]):
    """The files of a folder, each read by `read` when it is asked for, from storage that takes `storage_s` for it."""

    def __init__(self, paths: list[Path], read: Callable[[Path], Sample], storage_s: float = 0.0) -> None:
        self.paths = paths
        self.read = read
        self.storage_s = storage_s

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        if self.storage_s:
            time.sleep(self.storage_s)
        return self.read(self.paths[index])


def prepare(folder: Path, count: int, suffix: str, write: Callable[[Path, int], None]) -> list[Path]:
    """The first `count` sample files of `folder`, which rank 0 makes if there is no such folder. Called by all ranks."""
    if dist.get_rank() == 0 and not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Under another name first: a job that is interrupted here leaves no folder that looks whole.
        with tempfile.TemporaryDirectory(dir=folder.parent) as making:
            whole = Path(making) / "files"
            whole.mkdir()
            for index in range(count):
                write(whole / f"{index:06d}{suffix}", index)
            shutil.move(whole, folder)
    dist.barrier()
    paths = sorted(folder.glob(f"*{suffix}"))[:count]
    if len(paths) < count:
        raise SystemExit(f"{folder} holds {len(paths)} {suffix} files, not {count}: give another folder")
    return paths
