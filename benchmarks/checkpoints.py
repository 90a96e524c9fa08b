"""What checkpoints cost at other intervals than the recorded one: predicted, and carried out.

    python -m benchmarks.checkpoints [--ways torch dcp thread async] [--state-mb 64 120] [--repeats 5] [--saves 12]

A job saves its state every 8 steps, or every 32 if it is written in the background, and is recorded once. `esprof recommend
--only checkpoint` predicts what half and twice that interval would cost. Then the job runs with these intervals and without
saves, interleaved and unrecorded. Prints a table, and a JSON line for each interval: the predicted and the observed
overhead, the step without saves, and how many observations the interval holds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import esprof
from benchmarks.figures import show
from esprof.analyzers.advisors.checkpoint.advise import advise_checkpoints
from esprof.analyzers.advisors.checkpoint.answer import CheckpointAdvice, SaveInterval
from esprof.analyzers.recorded_job import RecordedJob

FIRST_STEPS = 8
"""Steps that are left out: they start the process's threads and fill its allocator."""
NEVER = 0
EVERY = {"torch": 8, "dcp": 8, "thread": 32, "async": 32}
"""Way of saving -> steps from one save to the next: in the background, a save takes several of these steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--state-mb", nargs="+", type=int, default=[64, 120])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--saves", type=int, default=12, help="of the recorded run")
    options = parser.parse_args()
    print("| way of saving | state | save every | predicted | interval | observed, median | observed | held |")
    print("|---|--:|--:|--:|---|--:|---|--:|")
    for state_mb in options.state_mb:
        for way in options.ways:
            with tempfile.TemporaryDirectory() as folder:
                carry_out(Path(folder), way, state_mb, options)


def carry_out(folder: Path, way: str, state_mb: int, options: argparse.Namespace) -> None:
    """Record the job, predict, and carry out what was predicted."""
    now = EVERY[way]
    steps = FIRST_STEPS + now * options.saves
    argv = ["--files", str(folder / "files"), "--how", way, "--state-mb", str(state_mb), "--steps", str(steps)]
    run = folder / "run"
    record = [
        sys.executable,
        "-m",
        "esprof",
        "record",
        "-q",
        "-f",
        "-o",
        str(run),
        "--flight",
        str(steps),
        "--",
    ]
    job = [sys.executable, "-m", "benchmarks.jobs.saves", *argv, "--every"]
    subprocess.run([*record, *job, str(now)], check=True, stdout=sys.stderr)
    advice = advise_checkpoints(RecordedJob(esprof.load(run)))
    intervals = {every: advice.of(every) for every in (now // 2, 2 * now)}
    observed: dict[int, list[float]] = {every: [] for every in intervals}
    for _ in range(options.repeats):
        took = {every: mean_step(job, every, folder / "times.json") for every in (NEVER, *intervals)}
        for every in intervals:
            observed[every].append(100 * (took[every] / took[NEVER] - 1))
    for every, predicted in intervals.items():
        report(way, advice, predicted, state_mb, observed[every])


def mean_step(job: Sequence[str], every: int, times: Path) -> float:
    """Mean step of a run that saves every so many steps, s."""
    subprocess.run([*job, str(every), "--times", str(times)], check=True, stdout=sys.stderr)
    return fmean(json.loads(times.read_text())[FIRST_STEPS:])


def report(
    way: str, advice: CheckpointAdvice, predicted: SaveInterval, state_mb: int, observed: Sequence[float]
) -> None:
    held = sum(predicted.low_pct <= one <= predicted.high_pct for one in observed)
    middle = median(observed)
    all_observed = ", ".join(f"{one:.1f}" for one in sorted(observed))
    print(
        f"| {way} | {state_mb} MiB | {predicted.every} | {predicted.overhead_pct:.1f} % | {predicted.low_pct:.1f} to "
        f"{predicted.high_pct:.1f} % | {middle:.1f} % | {all_observed} | {held} of {len(observed)} |",
        flush=True,
    )
    show(
        f"checkpoint_{way}_{state_mb}_every_{predicted.every}",
        predicted.overhead_pct / middle,
        "predicted/observed",
        {"predicted_pct": predicted.overhead_pct, "observed_pct": middle, "held": held, "of": len(observed)}
        | {"step_us": advice.measured.step_us, "recorded_every": advice.measured.every},
    )


if __name__ == "__main__":
    main()
