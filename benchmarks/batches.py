"""Are predicted times of batches of another size those of jobs that are really changed?

    python -m benchmarks.batches [--job NAME]… [--repeats 3] [--write-model-errors]

Records each of six small jobs (`benchmarks.jobs.peaks`) with three sizes of its batch, one after the other, `--repeats`
times. The recordings of each size predict the step with the others. Prints a Markdown row for each prediction, with means
over the repeats in ms, and JSON lines: the median and the worst error of a step, and how many intervals of savings hold.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch

from benchmarks.figures import show, table
from benchmarks.jobs.peaks import JOBS
from benchmarks.memory import call
from benchmarks.model_errors import CarriedOut, write_carried_out
from benchmarks.settings import noise_pct, slug
from benchmarks.unseen import Answer, ask, mean_step_ms
from esprof import load
from esprof.verbs import command_line

FACTORS = (0.5, 1, 2)
"""Sizes of a batch, as shares of the job's own."""
STEPS = "32"
WINDOW = ("--shapes", "--skip", "5", "--warmup", "2", "--steps", "16", "--stack-steps", "0")
COLUMNS = ("job", "what-if", ">before", ">predicted", ">measured", ">error %", ">noise %", "saving holds")


@dataclass(frozen=True)
class BatchChange:
    """A job whose batch was changed: step times in ms by repeat, and what the recordings before said."""

    job: str
    what_if: str
    before: list[float]
    after: list[float]
    said: list[Answer]

    @property
    def predicted(self) -> float:
        return mean(one.predicted for one in self.said)

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted / mean(self.after) - 1)

    @property
    def held(self) -> int:
        """How many intervals hold the saving."""
        saving = mean(self.before) - mean(self.after)
        return sum(one.saving[0] <= saving <= one.saving[1] for one in self.said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", action="append", choices=JOBS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [one for name in options.job or JOBS for one in changes(name, Path(folder), options.repeats)]
    print(table(COLUMNS, map(row, found)))
    errors = [abs(one.error_pct) for one in found]
    context = {"changes": len(found), "repeats": options.repeats, "torch": torch.__version__}
    show("batch_time_error_median", statistics.median(errors), "%", context)
    show("batch_time_error_worst", max(errors), "%", context)
    held = sum(one.held for one in found)
    show("batch_time_savings_held", 100 * held / (len(found) * options.repeats), "%", context)
    if options.write_model_errors:
        answers = [CarriedOut("cpu", "batch", mean(one.before), one.predicted, mean(one.after)) for one in found]
        write_carried_out("batches", "python -m benchmarks.batches", answers)


def changes(name: str, folder: Path, repeats: int) -> Iterator[BatchChange]:
    """What the recordings of each size say of the others."""
    runs: dict[float, list[Path]] = {factor: [] for factor in FACTORS}
    for repeat, factor in itertools.product(range(repeats), FACTORS):
        run = folder / slug(f"{name}-{factor:g}-{repeat}")
        job = (sys.executable, "-m", "benchmarks.jobs.peaks", name, "--batch", f"{factor:g}", "--steps", STEPS)
        call(*command_line("record", "-q", "-o", str(run), *WINDOW, "--"), *job)
        runs[factor].append(run)
        print(f"{name}, batch x{factor:g}, repeat {repeat}", file=sys.stderr, flush=True)
    step_ms = {factor: [mean_step_ms(load(run)) for run in of] for factor, of in runs.items()}
    for before, after in itertools.permutations(FACTORS, 2):
        spec = f"batch={after / before:g}x"
        said = [ask(run, [spec])[spec] for run in runs[before]]
        answers = [one for one in said if isinstance(one, Answer)]
        if len(answers) < len(said):
            raise SystemExit(f"{name}: {spec} was not answered: {next(one for one in said if isinstance(one, str))}")
        yield BatchChange(name, spec, step_ms[before], step_ms[after], answers)


def row(one: BatchChange) -> list[str]:
    noise = f"{noise_pct(one.before):.1f}, {noise_pct(one.after):.1f}"
    times = [f"{mean(one.before):.1f}", f"{one.predicted:.1f}", f"{mean(one.after):.1f}", f"{one.error_pct:+.1f}"]
    return [one.job, f"`{one.what_if}`", *times, noise, f"{one.held} of {len(one.said)}"]


if __name__ == "__main__":
    main()
