"""Are predicted peaks of memory those of jobs that are really changed?

    python -m benchmarks.memory [--job NAME]…

Records each of six small jobs (`benchmarks.jobs.peaks`), predicts its peak as it is and after five changes, makes the
changes and asks PyTorch's allocator. Prints a table of errors, and a JSON line each for the median and the worst.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.figures import show, table
from benchmarks.jobs.peaks import JOBS
from esprof import load
from esprof.replay.replayed import Replayed, answer
from esprof.verbs import command_line

AS_RECORDED = "as recorded"
CHANGES = ("batch=2x", "batch=0.5x", "recompute=full", "batch=2x,recompute=full", "accumulate=2")
WINDOW = ("--memory", "--skip", "2", "--warmup", "1", "--steps", "3", "--stack-steps", "0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", action="append", choices=JOBS)
    names = parser.parse_args().job or list(JOBS)
    rows, errors = [], []
    for name in names:
        predicted, measured = predictions(name), measurements(name)
        of_job = [100 * (predicted[change] / measured[change] - 1) for change in (AS_RECORDED, *CHANGES)]
        errors += of_job[1:]
        rows.append([name, f"{measured[AS_RECORDED] / 1e6:.2f} MB", *(f"{error:+.2f} %" for error in of_job)])
        print(f"{name}: worst {max(map(abs, of_job)):.2f} %", file=sys.stderr, flush=True)
    print(table(["job", ">peak", *(f">{change}" for change in (AS_RECORDED, *CHANGES))], rows))
    context = {"jobs": len(names), "changes": len(CHANGES), "torch": torch.__version__}
    show("memory.peak.median_error", statistics.median(map(abs, errors)), "%", context)
    show("memory.peak.worst_error", max(map(abs, errors)), "%", context)


def predictions(name: str) -> dict[str, int]:
    """The peak of the job in bytes as recorded, and as predicted for each change."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        call(
            *command_line("record", "-q", "-o", str(run), *WINDOW, "--"),
            sys.executable,
            "-m",
            "benchmarks.jobs.peaks",
            name,
        )
        found = answer(Replayed.of(load(run)), CHANGES)
    peaks = {one.spec: one.peak.peak for one in found.what_if if one.peak is not None}
    return {AS_RECORDED: found.memory[0].peak} | peaks


def measurements(name: str) -> dict[str, int]:
    """The same of the jobs with the changes made."""
    text = call(sys.executable, "-m", "benchmarks.jobs.peaks", name, "--measure", "", *CHANGES)
    measured: dict[str, int] = json.loads(text)
    return {AS_RECORDED: measured.pop("")} | measured


def call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


if __name__ == "__main__":
    main()
