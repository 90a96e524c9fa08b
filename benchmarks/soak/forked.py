"""Ranks that the soak forks itself: they need no imports, so that a kill costs a second."""

import multiprocessing
import os
import time
from pathlib import Path

import torch.distributed as dist

from benchmarks.soak import job

_FORKS = multiprocessing.get_context("fork")


class ForkedRanks:
    """The ranks of a job between two starts, with the part of `subprocess.Popen` that the soak uses."""

    def __init__(self, world: int, folder: Path, kind: str, steps: int) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ranks = [
            _FORKS.Process(target=_rank, args=(rank, world, self._store.port, folder, kind, steps))
            for rank in range(world)
        ]
        self.returncode: int | None = None
        for rank in self._ranks:
            rank.start()

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks if rank.pid is not None and rank.is_alive()]

    def poll(self) -> int | None:
        """The exit code: of the first rank that failed, after which the others are killed; None while the job runs."""
        codes = [rank.exitcode for rank in self._ranks]
        if any(codes):
            for rank in self._ranks:
                rank.kill()
        if any(codes) or None not in codes:
            for rank in self._ranks:
                rank.join()
            self.returncode = next((code for code in codes if code), 0)
        return self.returncode


def _rank(rank: int, world: int, port: int, folder: Path, kind: str, steps: int) -> None:
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    job.rank(folder, kind, steps)
    time.sleep(0.1)  # Gloo may abort a process that ends right after its last collective.
