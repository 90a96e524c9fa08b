"""What recording a job of many ranks takes: calls of the job's store, packets and files of each rank, and the merge.

    python -m benchmarks.recorders [--ranks 8 32 128 512] [--at-once 64] [--seconds 8]

Each rank is a process that does nothing but steps of 50 ms, recorded by `esprof.record`. Rank 0 runs all the time, the
others `--at-once` together, each for so many seconds. Processes are forks of one that has imported torch, so that they
share its memory. They are in a process group without links: every call of its store whose key is
esprof's is counted, every packet that a process sends, and every file that it opens in the folder of the recording. Eight
ranks are a host, with a folder of their own. If two groups hold all ranks, each records a window of a step, and the folders
are merged; folders of ranks that did not run nearly together are not those of one job.

Prints a JSON line a figure. Packets a rank and second are those of the ranks that ask rank 0; it answers each once.
"""

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # It registers the backend.

import esprof
from benchmarks.figures import show
from esprof.run.merge import merge

_RANKS_OF_HOST = 8
_STEP_S = 0.05
_LEAST_STEPS = 10
"""As many as the window needs, however slow the machine is."""
_LONGEST_S = 300.0
"""How long a rank may take to end."""


class _CountedStore(dist.Store):
    """The store of a job, which counts the recorder's calls."""

    def __init__(self, store: dist.Store, counts: Counter[str]) -> None:
        super().__init__()
        self._store, self._counts = store, counts

    def set(self, key: str, value: Any) -> None:
        self._note(key)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self._note(key)
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        self._note(*keys)
        return self._store.check(keys)

    def _note(self, *keys: str) -> None:
        self._counts["store"] += any("esprof/" in key for key in keys)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument("--at-once", type=int, default=64, help="ranks that run together")
    parser.add_argument("--seconds", type=float, default=8.0, help="that a rank runs")
    asked = parser.parse_args()
    for ranks in asked.ranks:
        with tempfile.TemporaryDirectory() as scratch:
            _measure(Path(scratch), ranks, asked.at_once, asked.seconds)
    return 0


def _measure(scratch: Path, ranks: int, at_once: int, seconds: float) -> None:
    parts, counted = scratch / "parts", scratch / "counts"
    counted.mkdir()
    parts.mkdir(mode=0o700)
    begun = time.perf_counter()
    is_merged = ranks <= 2 * at_once
    _run(ranks, at_once, seconds, parts, counted, windows=is_merged)
    took_s = round(time.perf_counter() - begun, 1)
    context = {"ranks": ranks, "at_once": min(ranks, at_once), "windows": is_merged, "took_s": took_s}
    of_ranks = [json.loads(file.read_text()) for file in sorted(counted.iterdir())]
    assert len(of_ranks) == ranks, f"{ranks - len(of_ranks)} ranks did not end"
    followers = of_ranks[1:]
    a_second = sum(one.get("packets", 0) for one in followers) / sum(one["seconds"] for one in followers)
    show("recorders_store_calls", sum(one.get("store", 0) for one in of_ranks), "calls", context)
    show("recorders_packets_sent", a_second, "packets a rank and second", context | {"rank_0": of_ranks[0]["packets"]})
    show("recorders_files_opened", sum(one["opened"] for one in of_ranks) / ranks, "files a rank", context)
    raw = [path for path in parts.rglob("*") if path.is_file()]
    folders = [path for path in parts.rglob("*") if path.is_dir()]
    show("recorders_files", len(raw) / ranks, "files a rank", context | {"folders_a_rank": len(folders) / ranks})
    if not is_merged:
        return
    begun, cpu = time.perf_counter(), time.process_time()
    run = merge([parts], scratch / "whole")
    assert len(run.ranks) == ranks, f"of {ranks} ranks {len(run.ranks)} have a window"
    whole = [path for path in (scratch / "whole").rglob("*") if path.is_file()]
    each_ms = 1e3 * (time.process_time() - cpu) / ranks
    merged = {"files_of_a_rank": len(whole) / ranks, "merge_s": round(time.perf_counter() - begun, 2)}
    show("recorders_merge", each_ms, "ms of CPU time a rank", context | merged)


def _run(ranks: int, at_once: int, seconds: float, parts: Path, counted: Path, *, windows: bool) -> None:
    """Run all ranks, each of which leaves its counts in a file. Raises RuntimeError if one fails."""
    fork = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    others_ended = fork.Event()

    def start(rank: int, goes_on: Callable[[], bool]) -> BaseProcess:
        process = fork.Process(target=_recorded_rank, args=(rank, ranks, port, parts, counted, goes_on, windows))
        process.start()
        return process

    leader = start(0, lambda: not others_ended.is_set())
    try:
        for first in range(1, ranks, at_once):
            _join([start(rank, _for_s(seconds)) for rank in range(first, min(first + at_once, ranks))])
    finally:
        others_ended.set()
        _join([leader])


def _for_s(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds from the first call are not over."""
    begun: list[float] = []

    def goes_on() -> bool:
        begun[:] = begun or [time.monotonic()]
        return time.monotonic() < begun[0] + seconds

    return goes_on


def _join(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join(_LONGEST_S)
        if process.exitcode != 0:
            process.kill()
            raise RuntimeError(f"a rank ended with {process.exitcode}")


def _recorded_rank(
    rank: int, ranks: int, port: int, parts: Path, counted: Path, goes_on: Callable[[], bool], windows: bool
) -> None:
    """The process of a rank."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    counts: Counter[str] = Counter()
    # It must stay referred to: torch would forget its methods.
    store = _CountedStore(dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False), counts)
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)
    folder = parts / f"part-{rank // _RANKS_OF_HOST:05d}"
    sys.addaudithook(_counter(counts, str(folder)))
    with esprof.record(folder, windows=windows, skip=2, warmup=0, steps=1, stack_steps=0):
        steps, begun = 0, time.monotonic()
        while steps < _LEAST_STEPS or goes_on():
            time.sleep(_STEP_S)
            esprof.step()
            steps += 1
    lasted = {"seconds": time.monotonic() - begun}
    (counted / f"{rank:05d}").write_text(json.dumps({**counts, **lasted}))


def _counter(counts: Counter[str], folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook that counts packets sent, and files opened in `folder`."""

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.sendto":
            counts["packets"] += 1
        elif event == "open" and str(arguments[0]).startswith(folder):
            counts["opened"] += 1

    return count


if __name__ == "__main__":
    sys.exit(main())
