"""How fast esprof is. One JSON line a figure.

    python -m benchmarks.speed [RUN…] [--nodes 10000000] [--repeats 5] [--no-peers]

For each RUN, of Kineto traces: reading its largest trace, plain and compressed, beside Holistic Trace Analysis, which is
installed for that; building the graph; `esprof diagnose` in a fresh process. Then, on a graph made up to size, the engine;
and the machine's memory bandwidth, which bounds it.

Rates are per core: over CPU time, the best of the repeats, with the median beside it, since other work on the machine only
ever slows. Times are medians of wall time. The first repeat, which compiles or fills caches, is not counted.
"""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import esprof
from benchmarks.peers import Hta
from benchmarks.synthetic import job
from esprof.core.compiled import cache_folder, compiled
from esprof.replay.building.build import build_counted
from esprof.replay.dfg import Dfg
from esprof.replay.engine import longest_path
from esprof.replay.engine.schedule import freeze, schedule

MB = 1e6
WORKERS = 256
LARGER_THAN_CACHES = 1 << 25
"""Numbers in each of three arrays of 256 MiB, which no cache holds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    bench = Bench(options.repeats)
    bench.seconds("cli_start", [sys.executable, "-m", "esprof", "--help"], {})
    for source in options.runs:
        reading(bench, Path(source), peers=not options.no_peers)
        building(bench, source)
        command = [sys.executable, "-m", "esprof", "diagnose", source]
        bench.seconds("diagnose_cold_s", command, {"run": source}, env=caching("/dev/null"))
    scheduling(bench, options.nodes)
    replaying(bench, options.nodes)
    bandwidth(bench)


class Bench:
    """Measures and prints."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self._machine = {"machine": _processor(), "repeats": repeats}

    def rate(self, name: str, amount: float, unit: str, action: Callable[[], Any], context: dict[str, Any]) -> None:
        """Print `amount` a second of CPU time."""
        times = self._times(action, time.process_time)
        spread = {"median": _rounded(amount / median(times)), "worst": _rounded(amount / max(times))}
        self.print(name, amount / min(times), f"{unit}/s", context | spread)

    def seconds(
        self, name: str, command: list[str], context: dict[str, Any], env: dict[str, str] | None = None
    ) -> None:
        """Print the wall time of a command."""
        run = partial(subprocess.run, command, check=True, capture_output=True, env=env)
        times = self._times(run, time.perf_counter)
        self.print(name, median(times), "s", context | {"min": _rounded(min(times)), "max": _rounded(max(times))})

    def print(self, name: str, value: float, unit: str, context: dict[str, Any]) -> None:
        line = {"name": name, "value": _rounded(value), "unit": unit, "context": context | self._machine}
        print(json.dumps(line), flush=True)

    def _times(self, action: Callable[[], Any], clock: Callable[[], float]) -> list[float]:
        return [timed(action, clock) for _ in range(self.repeats + 1)][1:]


def caching(folder: str) -> dict[str, str]:
    """An environment in which answers are stored in `folder`; nowhere if it is /dev/null. Compiled code stays in place."""
    kernels = cache_folder()
    compiled = {} if kernels is None else {"NUMBA_CACHE_DIR": str(kernels.parents[1])}
    return os.environ | compiled | {"XDG_CACHE_HOME": folder}


def timed(action: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    started = clock()
    action()
    return clock() - started


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.machine()


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def reading(bench: Bench, source: Path, *, peers: bool) -> None:
    """`read_mb_s`, `read_gz_mb_s` (of what it holds uncompressed) and `read_vs_hta`, on the largest trace of a run."""
    traces = [source] if source.is_file() else [*source.glob("*.json"), *source.glob("*.json.gz")]
    largest = max(traces, key=lambda path: path.stat().st_size)
    content = gzip.decompress(largest.read_bytes()) if largest.suffix == ".gz" else largest.read_bytes()
    with tempfile.TemporaryDirectory() as folder, Hta() if peers else nullcontext() as hta:
        plain, compressed = Path(folder, "trace.json"), Path(folder, "trace.json.gz")
        plain.write_bytes(content)
        compressed.write_bytes(gzip.compress(content, 6))
        size = len(content) / MB
        context = {"trace": str(largest), "mb": _rounded(size), "events": load(plain)}
        bench.rate("read_mb_s", size, "MB", lambda: load(plain), context)
        bench.rate("read_gz_mb_s", size, "MB", lambda: load(compressed), context)
        if hta:
            pairs = [(timed(lambda: load(plain)), hta.load_s(plain)) for _ in range(bench.repeats + 1)][1:]
            ours, theirs = (median(times) for times in zip(*pairs, strict=True))
            seconds = {"esprof_s": _rounded(ours), "hta_s": _rounded(theirs), "hta": hta.version}
            bench.print("read_vs_hta", theirs / ours, "times as fast", context | seconds)


def load(path: Path) -> int:
    """Read a run with all its columns; returns how many events it has."""
    run = esprof.load(path)
    return sum(len(run.events(rank)) for rank in run.ranks)


def building(bench: Bench, source: str) -> None:
    """`build_events_s`, and how much memory the graph takes."""
    run = esprof.load(source)
    events, dfg = sum(len(run.events(rank)) for rank in run.ranks), build_counted(run).dfg
    context = {"run": source, "events": events, "nodes": dfg.nodes, "edges": dfg.edges}
    bench.rate("build_events_s", events, "events", lambda: build_counted(run), context)
    bench.print("bytes_per_node", size_of(dfg) / dfg.nodes, "bytes", context)


def size_of(dfg: Dfg) -> int:
    columns = (getattr(dfg, field.name) for field in fields(dfg) if field.init)
    return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


def scheduling(bench: Bench, nodes: int) -> None:
    """`schedule_nodes_s` and `freeze_nodes_s`: a synthetic job whose GPUs and links have no order yet."""
    dfg = job(nodes, WORKERS, queues=False)
    order = schedule(dfg).order
    context = {"nodes": dfg.nodes, "workers": WORKERS, "edges": dfg.edges}
    bench.rate("schedule_nodes_s", dfg.nodes, "nodes", lambda: schedule(dfg), context)
    bench.rate("freeze_nodes_s", dfg.nodes, "nodes", lambda: freeze(dfg, order), context)


def replaying(bench: Bench, nodes: int) -> None:
    """`replay_nodes_s`: the synthetic job with its order."""
    dfg = job(nodes, WORKERS)
    context = {"nodes": dfg.nodes, "workers": WORKERS, "edges": dfg.edges}
    bench.rate(
        "replay_nodes_s", dfg.nodes, "nodes", lambda: longest_path.ends(dfg, dfg.dur_ns, dfg.residual_ns), context
    )


def bandwidth(bench: Bench) -> None:
    """`memory_bandwidth_gb_s`: a triad, two arrays read and one written."""
    one, two, three = (np.ones(LARGER_THAN_CACHES) for _ in range(3))
    moved = (one.nbytes + two.nbytes + three.nbytes) / 1e9
    bench.rate("memory_bandwidth_gb_s", moved, "GB", lambda: _triad(one, two, three), {"array_mb": one.nbytes / MB})


@compiled
def _triad(to: np.ndarray, one: np.ndarray, two: np.ndarray) -> None:
    for at in range(len(to)):
        to[at] = one[at] + 3.0 * two[at]


if __name__ == "__main__":
    main()
