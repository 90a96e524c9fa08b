"""What a run of many ranks takes: reading, the graph, replays, five what-ifs and the diagnosis; seconds and memory.

    python -m benchmarks.scale [--ranks 64] [--events 50000] [--processes 2] [--repeats 3] [--keep FOLDER] [--dask N]

The job is simulated (`benchmarks.large_job`): training in tensor, pipeline and data groups with a slow rank and a slow link,
written as a Run directory. It is replayed rank by rank (`esprof.replay.skeleton`) in so many processes, and, if it is not
larger than what esprof replays at once, as one graph as well. Each repeat is a process of its own. Prints one JSON line a
figure, the median over the repeats, and on stderr a Markdown table with a row for this number of ranks. Peak memory is the
sum over the processes, each at its own peak. `alone` is the time in which no rank is worked on. `price_error` is that of the
saving of `straggler=fix`, compared with the same job simulated without a slow rank.

With `--dask N` it is replayed and diagnosed by N Dask workers of 4 GB, of which one is killed in the middle, and by one
process: both answers must be the same.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import esprof
from benchmarks.figures import show, table
from benchmarks.large_job import LargeJob, mean_step_ms, write
from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.engine.timeline import replay
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.replayed import Replayed, answer
from esprof.replay.skeleton.blame import SkeletonBlame
from esprof.replay.skeleton.large import LargeReplay, is_large
from esprof.replay.skeleton.pricing import SkeletonPricer
from esprof.run.run import Run

UNITS = {
    "events": "events", "run_on_disk": "GB", "kept_on_disk": "GB", "kept_bytes_an_event": "bytes",
    "peak_memory": "GB", "peak_memory_by_rank": "GB", "bytes_a_compared_node": "bytes", "saving": "ms", "price_error": "%",
}  # fmt: skip
"""Of figures that are no seconds."""
COLUMNS = {
    "all, s": ("total",),
    "read": ("open", "finding_the_steps", "reading_collectives"),
    "build": ("building_the_ranks",),
    "contract": ("contracting_the_ranks", "following_the_critical_path"),
    "compare": ("reading_the_work_of_ranks", "comparing_ranks"),
    "change": ("changing_the_ranks",),
    "divide": ("breaking_down_steps",),
    "alone": ("alone",),
}
"""Columns of the table, and the figures `by_rank_…` whose seconds each adds up."""
WHAT_IFS = ("gpu=2x", "cpu=2x", "network=2x", "overlap=perfect", "straggler=fix")
"""The last one mends what was planted."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=50_000, help="of each rank, about")
    parser.add_argument("--processes", type=int, default=2, help="that build ranks; 1 for the main process alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the Run stays, or is if it is not empty")
    parser.add_argument("--dask", type=int, default=0, metavar="N")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure-by-rank", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measured(asked.measure)))
        return 0
    if asked.measure_by_rank:
        print(json.dumps(measured_by_rank(asked.measure_by_rank, asked.processes)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        job, written = LargeJob.of(asked.ranks, asked.events), dict[str, float]()
        if not any(folder.iterdir()):
            since = time.perf_counter()
            write(folder, job)
            written["write"] = time.perf_counter() - since
        written["events"] = _events(folder)
        written["run_on_disk"] = _bytes_in(folder) / 1e9
        if asked.dask:
            _on_dask(folder, asked.dask)
            return 0
        found = [written | _repeat(folder, asked.processes) for _ in range(asked.repeats)]
    costs_ms = mean_step_ms(job) - mean_step_ms(replace(job, slow_compute=1.0))
    found = [one | {"price_error": 100 * (one["saving"] / costs_ms - 1)} for one in found]
    for name in found[0]:
        values = [one[name] for one in found]
        context = {"ranks": asked.ranks, "least": min(values), "most": max(values), "repeats": len(values)}
        unit = UNITS.get(name, "s")
        print(
            json.dumps({"name": f"scale_{name}", "value": round(median(values), 3), "unit": unit, "context": context})
        )
    print(_table(asked.ranks, {name: median(one[name] for one in found) for name in found[0]}), file=sys.stderr)
    return 0


def _table(ranks: int, figures: Mapping[str, float]) -> str:
    """The Markdown table of the replay rank by rank."""
    seconds = (sum(figures.get(f"by_rank_{name}", 0.0) for name in names) for names in COLUMNS.values())
    row = [
        f"{ranks:,}",
        f"{figures['events'] / 1e6:,.1f} million",
        *(f"{one:,.0f}" for one in seconds),
        *(f"{figures[name]:.1f} GB" for name in ("peak_memory_by_rank", "run_on_disk", "kept_on_disk")),
    ]
    titles = ["ranks", "events", *COLUMNS, "memory", "Run on disk", "graphs on disk"]
    return table([f">{title}" for title in titles], [row])


def _on_dask(folder: Path, count: int) -> None:
    """Show how long Dask workers take, or raise an error if they give another answer than this process."""
    from dask.distributed import Client, LocalCluster

    opened = esprof.load(folder)
    opened.keeps_one_rank = True
    alone = _answers(opened, RankWorkers())
    with (
        LocalCluster(count, threads_per_worker=1, memory_limit="4GB", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        victims = sorted(client.run(os.getpid).values())[:1]
        middle = f"{len(opened.ranks) // 2:,} done"

        def tell(what: str) -> None:
            if victims and what.startswith("Contracting") and what.endswith(f" {middle}"):
                os.kill(victims.pop(), signal.SIGKILL)

        begun = time.perf_counter()
        on_dask = _answers(opened, RankWorkers(client.get_executor(pure=False), tell))
        took = time.perf_counter() - begun
    assert not victims, "no worker was killed"
    assert on_dask == alone, "Dask workers give another answer"
    show("scale_on_dask", took, "s", {"ranks": len(opened.ranks), "workers": count, "killed": 1, "same": True})


def _answers(run: Run, workers: RankWorkers) -> list[dict[str, Any]]:
    """Replay with what-ifs, and diagnosis, but for the time that they took."""
    replayed = LargeReplay.by_rank(run, workers=workers)
    found = [msgspec.to_builtins(one) for one in (answer(replayed, WHAT_IFS), diagnose(replayed))]
    return [one | {"timing_s": None} for one in found]


def _repeat(folder: Path, processes: int) -> dict[str, float]:
    by_rank = _in_process("--measure-by-rank", folder, "--processes", str(processes))
    return by_rank if is_large(esprof.load(folder)) else by_rank | _in_process("--measure", folder)


def _in_process(option: str, folder: Path, *more: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scale", option, str(folder), *more]
    found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


class _Laps:
    """Seconds from one lap to the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


def measured(folder: Path) -> dict[str, float]:
    """Seconds of each stage with one graph, and the peak memory in GB, of this process."""
    lap = _Laps()
    opened = esprof.load(folder)
    for rank in opened.ranks:
        opened.events(rank)
    lap("read")
    dfg = build(opened)
    lap("build")
    replay(dfg)
    lap("replay")
    del dfg
    replayed = Replayed.of(opened)
    lap("replayed")
    replayed.pricer.prices(WHAT_IFS)
    lap("what_ifs")
    diagnose(replayed)
    lap("diagnose")
    return lap.seconds | {"peak_memory": _peak(resource.RUSAGE_SELF)}


@dataclass(frozen=True, kw_only=True)
class _TimedWorkers(RankWorkers):
    """Workers that show what each pass over the ranks takes, and what passes between them."""

    lap: _Laps

    def over(self, what: str, work: Callable[[Any], Any], tasks: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        self.lap("by_rank_alone")
        yield from super().over(what, work, tasks)
        self.lap(f"by_rank_{what.lower().replace(' ', '_')}")


def measured_by_rank(folder: Path, processes: int) -> dict[str, float]:
    """Seconds of the passes over the ranks, the peak memory and what is kept on disk in GB."""
    begun, lap = time.perf_counter(), _Laps()
    opened = esprof.load(folder)
    opened.keeps_one_rank = True
    lap("by_rank_open")
    with _processes(processes) as pool:
        replayed = LargeReplay.by_rank(opened, workers=_TimedWorkers(executor=pool, lap=lap))
        mended = answer(replayed, WHAT_IFS).what_if[-1]
        held = _bytes_a_node(replayed)
        print(diagnose(replayed).verdict, file=sys.stderr)
        lap("by_rank_alone")
    total = time.perf_counter() - begun
    peak = _peak(resource.RUSAGE_SELF) + (processes * _peak(resource.RUSAGE_CHILDREN) if processes > 1 else 0)
    kept = _kept_bytes(replayed)
    assert mended.saving_us is not None, mended.reason
    return lap.seconds | {
        "saving": mended.saving_us / 1000,
        "by_rank_total": total,
        "peak_memory_by_rank": peak,
        "bytes_a_compared_node": held,
        "kept_on_disk": kept / 1e9,
        "kept_bytes_an_event": kept / _events(folder),
    }


def _events(folder: Path) -> int:
    return sum(meta.events for meta in esprof.load(folder).meta.ranks)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*"))


def _kept_bytes(replayed: LargeReplay) -> int:
    """What the graphs of all ranks take on disk, bytes; 0 if there is no room for them."""
    assert isinstance(replayed.pricer, SkeletonPricer)
    kept = replayed.pricer.job.ranks.kept.folder
    return 0 if kept is None else _bytes_in(kept)


def _bytes_a_node(replayed: LargeReplay) -> float:
    """What the comparison of ranks holds of each node, bytes."""
    blame = replayed.pricer.blame
    assert isinstance(blame, SkeletonBlame)
    columns = blame.nodes.columns
    held = sum(values.nbytes for mine in columns for values in mine.values())
    return held / sum(len(mine["dur_ns"]) for mine in columns)


@contextmanager
def _processes(count: int) -> Iterator[Executor | None]:
    if count == 1:
        yield None
        return
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        yield pool


def _peak(whose: int) -> float:
    """Peak memory of this process, or of the largest of its children, GB."""
    return resource.getrusage(whose).ru_maxrss / 1e6  # It is given in kilobytes.


if __name__ == "__main__":
    sys.exit(main())
