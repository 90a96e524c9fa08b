"""Overhead of recording. Prints one JSON line per figure.

    python -m benchmarks.overhead [--rounds 3] [--only REGEX]

Trains each of `JOBS` on this machine's CPU, as real processes under torchrun, and compares its steps with the recorder and
without, as close to each other in time as can be:

- outside of windows, alternating blocks of steps with and without the recorder in one process (`benchmarks.alternating`);
  what the recorder's own hooks take, read off two clocks around each; and, for the whole of it, `esprof record --flight`
  against the bare job, a process each, interleaved;
- inside windows, alternating in one process: nothing, torch.profiler alone, a window of esprof, and the
  recorder without a window (`benchmarks.interleaved`);
- inside windows, the timed steps of each of many windows against the plain steps on both sides of it; what opening and
  closing a window adds to the steps around it.

A figure is a median over such pairs, `low` and `high` its 95 % bootstrap interval, `iqr` the spread of the pairs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

import esprof
from benchmarks.alternating import Blocks
from benchmarks.interleaved import KINDS, NONE, InterleavedSteps
from benchmarks.speed import Bench
from esprof import Run
from esprof.core.statistics import MIN_REPLICATES, bootstrap
from esprof.core.types import NS_PER_MS, NS_PER_US
from esprof.replay.steps import steps_of

BLOCK = 8
SETTLED = 6
"""Blocks after which a job is taken to have warmed up."""
EVERY = 40
"""Steps from window to window: 10 of them are not plain."""


@dataclass(frozen=True)
class Job:
    """A job of `benchmarks.jobs`, long enough that a round holds some dozen pairs."""

    name: str
    module: str
    size: str
    steps: int
    ranks: int = 1

    def argv(self, folder: Path, steps: int) -> list[str]:
        files = ["--files", str(folder / f"files-{self.module}"), "--steps", str(steps)]
        return [f"benchmarks.jobs.{self.module}", *files, *self.size.split()]


JOBS = (
    Job("tiny operations", "gpt", "--hidden 64 --batch 4", steps=800),
    Job("a thousand operations", "mlp", "--hidden 384 --batch 32", steps=800),
    Job("small operations", "gpt", "", steps=400),
    Job("large operations", "mlp", "--hidden 1024 --batch 128", steps=320),
    Job("two ranks, loader workers", "gpt", "--workers 1", steps=400, ranks=2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="jobs whose name this matches")
    options = parser.parse_args()
    bench = Bench(options.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for job in JOBS:
            if options.only.search(job.name):
                outside(bench, job, folder)
                flight(bench, job, folder)
                by_kind(bench, job, folder)
                inside(bench, job, folder)
        if options.only.search(JOBS[0].name):
            inside(bench, JOBS[0], folder, "--shapes", "--stack-steps", "2")
            inside(bench, JOBS[0], folder, "--shapes")  # In the timed steps, as there are no others.


def outside(bench: Bench, job: Job, folder: Path) -> None:
    """`recorder_outside_pct`, in wall time and in CPU time of the training thread, and by two clocks the hooks in it."""
    rounds = [_alternate(job, folder) for _ in range(bench.repeats)]
    for name, column in (("recorder_outside_pct", "step_ns"), ("recorder_outside_cpu_pct", "cpu_ns")):
        bare_ns = float(np.median(np.concatenate([_bare(blocks, column) for blocks in rounds])))
        pairs = np.concatenate([_differences(blocks, column) for blocks in rounds])
        context = {"job": job.name, "step_ms": round(bare_ns / NS_PER_MS, 3), "pairs": len(pairs)}
        report(bench, name, 100 * pairs / bare_ns, "%", context)
    for name, column in (("recorder_border_us", "border_ns"), ("recorder_next_us", "next_ns")):
        bench.print(name, median(_extra(blocks, column) for blocks in rounds) / NS_PER_US, "us", context)
    writer = median(100 * blocks.background_writer_cpu_s / blocks.seconds for blocks in rounds)
    bench.print("background_writer_cpu_pct", writer, "% of a core", context)
    # Half of the steps are sampled.
    sampler = median(200 * blocks.sampler_cpu_s / blocks.seconds for blocks in rounds)
    bench.print("sampler_cpu_pct", sampler, "% of a core", context)


def flight(bench: Bench, job: Job, folder: Path) -> None:
    """`recorder_flight_pct`: the whole job under `esprof record --flight` against the whole job without."""
    command = [*_torchrun(job), *job.argv(folder, job.steps // 2)]
    recording = [*_record(folder / "flight"), "--flight", "2000", "--"]
    times = []
    for number in range(bench.repeats):
        order = ([], recording) if number % 2 else (recording, [])  # The first one alternates.
        times.append(sorted((bool(options), _step_ms([*options, *command])) for options in order))
    bare, recorded = (np.array([pair[kind][1] for pair in times]) for kind in (False, True))
    context = {"job": job.name, "step_ms": round(float(np.median(bare)), 3), "pairs": len(bare)}
    report(bench, "recorder_flight_pct", 100 * (recorded / bare - 1), "%", context)


def by_kind(bench: Bench, job: Job, folder: Path) -> None:
    """`part_KIND_pct`: CPU time of a block with one kind of recording, relative to its neighbours without any; and
    `part_modules_pct`: that of a window, less that of the next one without the calls of modules."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(bench.repeats):
        steps = _interleave(job, folder)
        blocks = len(steps.kind) // BLOCK
        step_ns = np.median(np.array(steps.cpu_ns[: blocks * BLOCK]).reshape(-1, BLOCK)[:, 1:], axis=1)
        kind = steps.kind[: blocks * BLOCK : BLOCK]
        for at in (at for at in range(SETTLED + 1, blocks - 1) if kind[at] != NONE):
            found[kind[at]].append(100 * (2 * step_ns[at] / (step_ns[at - 1] + step_ns[at + 1]) - 1))
    found["modules"] = [a - b for a, b in zip(found["window"], found["without_modules"], strict=False)]
    for name, pairs in found.items():
        context = {"job": job.name, "step_ms": round(float(np.median(step_ns)) / NS_PER_MS, 3), "pairs": len(pairs)}
        report(bench, f"part_{name}_pct", np.array(pairs), "%", context)


def inside(bench: Bench, job: Job, folder: Path, *flags: str) -> None:
    """`recorder_inside_pct` of a timed step; what a window adds to the steps in which it is opened and closed."""
    runs = [_record_windows(job, folder, flags) for _ in range(bench.repeats)]
    windows = [window for run in runs for window in _windows(run)]
    plain_ms, events = median(window.plain_ms for window in windows), median(window.events for window in windows)
    context = {"job": job.name, "flags": " ".join(flags), "step_ms": round(plain_ms, 3), "pairs": len(windows)}
    context |= {"events_a_step": round(events)}
    report(bench, "recorder_inside_pct", np.array([100 * (w.timed_ms / w.plain_ms - 1) for w in windows]), "%", context)
    per_event = np.array([1e3 * (window.timed_ms - window.plain_ms) / window.events for window in windows])
    report(bench, "recorder_event_us", per_event, "us", context)
    context |= {"events_a_window": round(events * windows[0].steps)}
    for name in ("open_ms", "close_ms"):
        report(bench, f"recorder_{name}", np.array([getattr(window, name) for window in windows]), "ms", context)


def report(bench: Bench, name: str, pairs: np.ndarray, unit: str, context: dict[str, Any]) -> None:
    """Print the median of `pairs`, its 95 % bootstrap interval, and their interquartile range."""
    replicates = bootstrap(
        len(pairs), 1, lambda at: np.median(pairs[at], axis=-1), MIN_REPLICATES, np.random.default_rng(0)
    )
    spread = {
        "low": float(np.quantile(replicates, 0.025)),
        "high": float(np.quantile(replicates, 0.975)),
        "iqr": float(np.quantile(pairs, 0.75) - np.quantile(pairs, 0.25)),
    }
    bench.print(name, float(np.median(pairs)), unit, context | {key: round(n, 3) for key, n in spread.items()})


def _alternate(job: Job, folder: Path) -> Blocks:
    """Rank 0's steps with the recorder alternately on and off."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        _output([*_torchrun(job), "benchmarks.alternating", out, str(BLOCK), *job.argv(folder, job.steps)])
        return msgspec.json.decode(Path(out, "rank-0.json").read_bytes(), type=Blocks)


def _interleave(job: Job, folder: Path) -> InterleavedSteps:
    """Rank 0's steps, alternately without and with windows of several kinds."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        _output([*_torchrun(job), "benchmarks.interleaved", out, str(BLOCK), *job.argv(folder, 2 * job.steps)])
        return msgspec.json.decode(Path(out, "rank-0.json").read_bytes(), type=InterleavedSteps)


def _by_block(blocks: Blocks, column: str) -> np.ndarray:
    """A column, shape (blocks, steps), without the blocks in which the job warms up and the first step of each block."""
    values = np.array(getattr(blocks, column))
    rows: np.ndarray = values[: len(values) // BLOCK * BLOCK].reshape(-1, BLOCK)[SETTLED:, 1:]
    return rows


def _differences(blocks: Blocks, column: str) -> np.ndarray:
    """For each block with the recorder, its median step minus the mean of those of the two neighbouring blocks, ns."""
    on, step = _by_block(blocks, "on")[:, 0], np.median(_by_block(blocks, column), axis=1)
    extra: np.ndarray = (step[1:-1] - (step[:-2] + step[2:]) / 2)[on[1:-1]]
    return extra


def _bare(blocks: Blocks, column: str) -> np.ndarray:
    """The steps without the recorder, ns."""
    steps: np.ndarray = _by_block(blocks, column)[~_by_block(blocks, "on")]
    return steps


def _extra(blocks: Blocks, column: str) -> float:
    """By how much the median of a clock's readings is higher in the steps with the recorder, ns."""
    values, on = _by_block(blocks, column), _by_block(blocks, "on")
    return float(np.median(values[on]) - np.median(values[~on]))


def _step_ms(command: Sequence[str]) -> float:
    """The median step of a job by its own clock, its first quarter aside."""
    line = next(line for line in _output(command).splitlines() if line.startswith('{"job"'))
    steps = json.loads(line)["step_ms"]
    return float(np.median(steps[len(steps) // 4 :]))


def _record_windows(job: Job, folder: Path, flags: Sequence[str]) -> Run:
    out = folder / "run"
    plan = ["--skip", str(EVERY), "--warmup", "2", "--steps", "7", "--stack-steps", "0", "--every", str(EVERY)]
    _output([*_record(out), *plan, *flags, "--", *_torchrun(job), *job.argv(folder, job.steps)])
    return esprof.load(out)


@dataclass(frozen=True)
class Window:
    """One window, compared with the plain steps around it."""

    steps: int
    events: float
    """Median number of events in a step of the window but the first."""
    plain_ms: float
    """Median of the plain steps around the window."""
    timed_ms: float
    """Median of the steps of the window but the first."""
    open_ms: float
    """By how much the steps of the window's warm-up together take longer than plain ones."""
    close_ms: float
    """By how much the steps in which the window is written together take longer than plain ones."""


def _windows(run: Run) -> Iterator[Window]:
    table = run.steps(0)
    number, ms = table.ints("step"), table.ints("dur_ns") / NS_PER_MS
    phase = np.array(table.texts("phase"))
    events = np.bincount(np.maximum(run.events(0).ints("step"), 0), minlength=int(number.max()) + 1)
    for window in steps_of(run).windows[:-1]:  # The last one may have no steps behind it.
        near = (number >= window[0] - EVERY // 2) & (number <= window[-1] + EVERY // 2)
        plain = float(np.median(ms[near & (phase == "plain")]))
        yield Window(
            steps=len(window),
            events=float(np.median(events[list(window[1:])])),
            plain_ms=plain,
            timed_ms=float(np.median(ms[np.isin(number, window[1:])])),
            open_ms=float((ms[near & (phase == "warmup")] - plain).sum()),
            close_ms=float((ms[near & (phase == "export")] - plain).sum()),
        )


def _record(out: Path) -> list[str]:
    return [sys.executable, "-m", "esprof", "record", "-q", "-f", "-o", str(out)]


def _torchrun(job: Job) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}", "-m"]


def _output(command: Sequence[str]) -> str:
    """Standard output of a command, which is shown with its errors where it fails."""
    home = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
