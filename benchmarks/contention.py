"""`runqueue=0`, carried out: what a step takes once other processes leave the CPUs, and what replay said of it.

    python -m benchmarks.contention [--repeats 2] [--jobs mlp gpt lstm mixer] [--beside 1 2 4] [--keep FOLDER]
        [--write docs/results/accuracy.md] [--write-model-errors]

Records two ranks of each job alone and beside processes that are busy all the time, interleaved. Alone, threads wait for a
CPU a little, too: what is predicted is the step beside the others, less what `runqueue=0` saves of it, plus what it saves of
the step alone. Prints a Markdown row for each case, mean steps in ms over the repeats, and JSON lines: the median error and
the worst, as shares of the step beside the others or of the predicted one, whichever is longer.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import copysign
from pathlib import Path
from statistics import mean, median

import esprof
from benchmarks.busy import load
from benchmarks.figures import Figure, show, summary, table
from benchmarks.model_errors import CarriedOut, write_carried_out
from benchmarks.sections import write_sections
from benchmarks.settings import ALL_STEPS, STEPS, noise_pct
from esprof.replay.replayed import Replayed

JOBS = {
    "mlp": ("--batch", "64"),
    "gpt": (),
    "lstm": (),
    "mixer": (),
}
"""Modules of `benchmarks.jobs`, and their arguments."""

WHAT_IF = "runqueue=0"
COLUMNS = ("job", ">others", ">step ms", ">waits ms", ">predicted ms", ">alone ms", ">error %", ">noise %")


@dataclass(frozen=True)
class Recorded:
    """A mean step in ms, and what `runqueue=0` saves of it."""

    step: float
    saving: float


@dataclass(frozen=True)
class Left:
    """A job that other processes left, ms: the mean steps of each repeat."""

    job: str
    beside: int
    """Number of the other processes."""
    before: tuple[Recorded, ...]
    alone: tuple[Recorded, ...]

    @property
    def carried_out(self) -> CarriedOut:
        step, saving = _means(self.before)
        alone, saved_alone = _means(self.alone)
        return CarriedOut("cpu", "runqueue", before=step, predicted=step - saving + saved_alone, observed=alone)

    @property
    def noise_pct(self) -> float:
        return max(noise_pct([one.step for one in some]) for some in (self.before, self.alone))


def _means(some: tuple[Recorded, ...]) -> tuple[float, float]:
    return mean(one.step for one in some), mean(one.saving for one in some)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--beside", type=int, nargs="+", default=[1, 2, 4], help="numbers of other processes")
    parser.add_argument("--keep", type=Path, help="folder for the recordings; those already there are not made again")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table into section `contention` of this page"
    )
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = list(carried_out(options.keep or Path(scratch), options))
    off = [100 * one.carried_out.share_off for one in found]
    figures = [
        Figure("contention_error_median", median(off), "%", {"cases": len(off), "repeats": options.repeats}),
        Figure("contention_error_worst", max(off), "%", {"cases": len(off), "repeats": options.repeats}),
    ]
    rows = table(COLUMNS, map(_row, found))
    print(rows)
    for figure in figures:
        show(*figure)
    if options.write:
        write_sections(options.write, {"contention": f"{rows}\n\n{summary(figures)}"})
    if options.write_model_errors:
        write_carried_out("contention", "python -m benchmarks.contention", [one.carried_out for one in found])


def carried_out(folder: Path, options: argparse.Namespace) -> Iterator[Left]:
    """Each job with each number of processes beside it, after all of them were recorded."""
    recorded = {
        (job, beside, repeat): _recorded(folder, job, beside, repeat)
        for job in options.jobs
        for repeat in range(options.repeats)
        for beside in (0, *options.beside)
    }
    for job in options.jobs:
        for beside in options.beside:
            before, alone = (
                tuple(recorded[job, processes, repeat] for repeat in range(options.repeats))
                for processes in (beside, 0)
            )
            yield Left(job, beside, before, alone)


def _recorded(folder: Path, job: str, beside: int, repeat: int) -> Recorded:
    """What is said of the recording of a job beside so many processes, which is made unless it is there already."""
    out = folder / f"{job}-{beside}-{repeat}"
    if not (out / "run.json").exists():
        arguments = ["--files", str(folder / f"{job}-files"), "--steps", str(ALL_STEPS), *JOBS[job]]
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", f"benchmarks.jobs.{job}"]
        window = ["--skip", "3", "--warmup", "2", "--steps", str(STEPS), "--stack-steps", "0"]
        record = ["-m", "esprof", "record", "-q", "-f", "-o", str(out), *window, "--"]
        with load(0.0, beside):
            done = subprocess.run(
                [sys.executable, *record, sys.executable, *ranks, *arguments], capture_output=True, text=True
            )
        if done.returncode:
            raise SystemExit(f"{job} ended with {done.returncode}\n{done.stderr}")
    replayed = Replayed.of(esprof.load(out), max_error_pct=100)
    (answer,) = replayed.pricer.answers([WHAT_IF])
    if answer.saving_us is None:
        raise SystemExit(f"{job}: {WHAT_IF} was not answered: {answer.reason}")
    print(f"{out.name}: {replayed.pricer.step_ns / 1e6:.1f} ms, {answer.saving_us / 1e3:.1f} ms of it", file=sys.stderr)
    return Recorded(replayed.pricer.step_ns / 1e6, answer.saving_us / 1e3)


def _row(one: Left) -> list[str]:
    carried = one.carried_out
    times = (carried.before, _means(one.before)[1], carried.predicted, carried.observed)
    error = copysign(100 * carried.share_off, carried.predicted - carried.observed)
    return [one.job, str(one.beside), *(f"{ms:.1f}" for ms in times), f"{error:+.1f}", f"{one.noise_pct:.0f}"]


if __name__ == "__main__":
    main()
