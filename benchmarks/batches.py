"""Are predicted times of other batches those of jobs that are really changed?

    python -m benchmarks.batches [--job NAME]… [--repeats 3] [--write docs/results/batches.md] [--write-model-errors]

Records each of six small jobs (`benchmarks.jobs.peaks`) with three sizes of its batch, one after the other, and those of one
backward pass a step with the batch in two parts, `--repeats` times. The recordings of each size predict the step with the
others, and those of the job's own size that in two parts. Prints a Markdown row for each prediction, with means over the
repeats in ms, and JSON lines: the median and the worst error of a step, and how many intervals of savings hold.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks.figures import Figure, show, summary, table
from benchmarks.jobs.peaks import JOBS
from benchmarks.memory import call
from benchmarks.model_errors import CarriedOut, term_of, write_carried_out
from benchmarks.sections import write_sections
from benchmarks.settings import noise_pct, slug
from benchmarks.unseen import Answer, ask, mean_step_ms
from esprof import load
from esprof.verbs import command_line

STEPS = "32"
WINDOW = ("--shapes", "--skip", "5", "--warmup", "2", "--steps", "16", "--stack-steps", "0")
COLUMNS = ("job", "what-if", ">before", ">predicted", ">measured", ">error %", ">noise %", "saving holds")


class Batch(NamedTuple):
    """How a job is trained: with so many times the samples of its own batch, in so many parts."""

    factor: float
    parts: int = 1

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("--batch", f"{self.factor:g}", "--parts", str(self.parts))


OWN, IN_PARTS = Batch(1), Batch(1, 2)
SIZES = (Batch(0.5), OWN, Batch(2))


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
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into section `batches` of this page")
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [one for name in options.job or JOBS for one in changes(name, Path(folder), options.repeats)]
    predictions, figures = table(COLUMNS, map(row, found)), list(of_all(found, options.repeats))
    print(predictions)
    for figure in figures:
        show(*figure)
    if options.write:
        write_sections(options.write, {"batches": f"{predictions}\n\n{summary(figures)}"})
    if options.write_model_errors:
        answers = (
            CarriedOut("cpu", term_of(one.what_if), mean(one.before), one.predicted, mean(one.after)) for one in found
        )
        write_carried_out("batches", "python -m benchmarks.batches", answers)


def changes(name: str, folder: Path, repeats: int) -> Iterator[BatchChange]:
    """What the recordings say of each other."""
    trained = SIZES if JOBS[name].micro_batches > 1 else (*SIZES, IN_PARTS)
    runs: dict[Batch, list[Path]] = {batch: [] for batch in trained}
    for repeat, batch in itertools.product(range(repeats), trained):
        run = folder / slug(f"{name}-{batch.factor:g}-{batch.parts}-{repeat}")
        job = (sys.executable, "-m", "benchmarks.jobs.peaks", name, *batch.arguments, "--steps", STEPS)
        call(*command_line("record", "-q", "-o", str(run), *WINDOW, "--"), *job)
        runs[batch].append(run)
        print(f"{name}, batch x{batch.factor:g} in {batch.parts}, repeat {repeat}", file=sys.stderr, flush=True)
    step_ms = {batch: [mean_step_ms(load(run)) for run in of] for batch, of in runs.items()}
    asked = [
        (before, after, f"batch={after.factor / before.factor:g}x")
        for before, after in itertools.permutations(SIZES, 2)
    ]
    if IN_PARTS in runs:
        asked.append((OWN, IN_PARTS, f"accumulate={IN_PARTS.parts}"))
    for before, after, spec in asked:
        said = [ask(run, [spec])[spec] for run in runs[before]]
        answers = [one for one in said if isinstance(one, Answer)]
        if len(answers) < len(said):
            raise SystemExit(f"{name}: {spec} was not answered: {next(one for one in said if isinstance(one, str))}")
        yield BatchChange(name, spec, step_ms[before], step_ms[after], answers)


def row(one: BatchChange) -> list[str]:
    noise = f"{noise_pct(one.before):.1f}, {noise_pct(one.after):.1f}"
    times = [f"{mean(one.before):.1f}", f"{one.predicted:.1f}", f"{mean(one.after):.1f}", f"{one.error_pct:+.1f}"]
    return [one.job, f"`{one.what_if}`", *times, noise, f"{one.held} of {len(one.said)}"]


def of_all(found: Sequence[BatchChange], repeats: int) -> Iterator[Figure]:
    """The figures over all changes."""
    errors, held = [abs(one.error_pct) for one in found], sum(one.held for one in found)
    context = {"changes": len(found), "repeats": repeats}
    yield Figure("batch_time_error_median", statistics.median(errors), "%", context)
    yield Figure("batch_time_error_worst", max(errors), "%", context)
    yield Figure("batch_time_savings_held", 100 * held / (len(found) * repeats), "%", context)


if __name__ == "__main__":
    main()
