"""What `esprof compare` says of pairs of runs that were really recorded: with a planted change, and without one.

    python -m benchmarks.comparisons [--rounds 2] [--keep FOLDER]
    python -m benchmarks.comparisons --again FOLDER         # judges stored recordings, records nothing

Six changes of jobs of `benchmarks.diagnosis` are recorded in rounds: without the change, with it, without it again. Four of
the changes are of sets whose author did not know the rules. Each changed run is compared with the unchanged run before it,
and the two unchanged runs with one another.

Prints a JSON line for each figure: in how many pairs the largest part beyond noise is of the planted kind and place; how far
its size is from the difference of all steps without profiler in the rounds; and how many pairs of unchanged runs have
a part beyond noise.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import esprof
from benchmarks.diagnosis.carrying_out import measure, record
from benchmarks.diagnosis.cases import Case, Job
from benchmarks.diagnosis.fifth import JOBS as FIFTH
from benchmarks.diagnosis.first import JOBS as FIRST
from benchmarks.diagnosis.fourth import JOBS as FOURTH
from benchmarks.figures import show
from benchmarks.settings import slug
from esprof.analyzers.comparison.answer import RunComparison
from esprof.analyzers.comparison.compare import compare

WINDOW = ("--skip", "8", "--warmup", "2", "--steps", "16")
BEFORE, AFTER, AGAIN = "before", "after", "again"


@dataclass(frozen=True)
class Planted:
    """A change of a job: the fault of a benchmark of diagnosis, and what has to be named first."""

    jobs: Sequence[Job]
    job: str
    fault: str
    strength: float
    rank: int
    named: str
    """Regular expression that the verdict matches if it names the change as the first of its parts."""

    @property
    def name(self) -> str:
        return f"{self.job} {self.fault}"

    def case(self, *, changed: bool) -> Case:
        job = next(one for one in self.jobs if one.name == self.job)
        fault = next(one for one in job.faults if one.name == self.fault)
        return Case(job, fault if changed else None, seed=0, rank=self.rank, strength=self.strength)


_FIRST = (
    r"^(A step takes [\d.,]+ m?s more|The duration of a step does not differ beyond noise) \([^)]*\)"
    "(: |, but its parts do: |\\. None of its large parts differs beyond noise; the largest is )[^;]*"
)

PAIRS = (
    Planted(FIFTH, "photos", "meters", 25, 0, "(exposed communication|all_reduce)"),
    Planted(FIFTH, "faces", "smoothness", 16, 0, "compute"),
    Planted(FIRST, "gpt", "python_hook", 0.8, 0, r"gpt\.py\(\d+\): log_activations"),
    Planted(FIRST, "gpt", "sleeps_often", 25, 1, r"gpt\.py\(\d+\): main"),
    Planted(FOURTH, "reviews", "far_shelf", 1.6, 0, "waiting for input"),
    Planted(FOURTH, "contrast", "keep", 5, 0, "slow steps"),
)


@dataclass(frozen=True)
class Judged:
    """One changed run against the unchanged one before it."""

    pair: Planted
    found: RunComparison
    is_named: bool
    """Whether its largest part is the change, certain or not."""

    @property
    def first_us(self) -> float:
        """The largest part beyond noise, µs; 0 if there is none."""
        return next((part.change_us for part in self.found.parts if not part.noise and part.change_us > 0), 0.0)

    @property
    def is_disturbed(self) -> bool:
        return is_disturbed(self.found)


def is_disturbed(found: RunComparison) -> bool:
    """Whether the verdict says that waits for a CPU explain the change, so that the runs are to be made again."""
    return "compare again on an idle machine" in found.verdict


def record_all(folder: Path, rounds: int) -> None:
    """Make the recordings that the folder lacks."""
    with tempfile.TemporaryDirectory() as files:
        for turn in range(rounds):
            for pair in PAIRS:
                for name in (BEFORE, AFTER, AGAIN):
                    out = folder / slug(pair.name) / f"{turn}-{name}"
                    if (out / "run.json").exists():
                        continue
                    out.parent.mkdir(parents=True, exist_ok=True)
                    failure = record(pair.case(changed=name == AFTER), out, Path(files) / pair.job, WINDOW)
                    print(f"{out.parent.name} {out.name}: {failure or 'recorded'}", file=sys.stderr, flush=True)


def rounds_of(pair: Planted, folder: Path) -> Iterator[tuple[Path, Path, Path]]:
    """The complete rounds of a pair: the unchanged run, the changed one, and the unchanged one after it."""
    for before in sorted((folder / slug(pair.name)).glob(f"*-{BEFORE}")):
        of_round = tuple(before.with_name(before.name.replace(BEFORE, name)) for name in (BEFORE, AFTER, AGAIN))
        if all((run / "run.json").exists() for run in of_round):
            yield of_round


def judge(folder: Path) -> tuple[list[Judged], list[tuple[Planted, RunComparison]]]:
    """The changed pairs, and those without a change."""
    changed, same = [], []
    for pair in PAIRS:
        for before, after, again in rounds_of(pair, folder):
            runs = [esprof.load(run) for run in (before, after, again)]
            found = compare(runs[0], runs[1])
            is_named = re.search(f"{_FIRST}{pair.named}", found.verdict) is not None
            print(f"{pair.name}: {'named' if is_named else 'NOT named'}: {found.verdict}", file=sys.stderr)
            changed.append(Judged(pair, found, is_named))
            unchanged = compare(runs[0], runs[2])
            print(f"{pair.name}, unchanged: {unchanged.verdict}", file=sys.stderr)
            same.append((pair, unchanged))
    return changed, same


def truth_us(pair: Planted, folder: Path) -> float:
    """What the change costs a mean step: the median over rounds of its run less the mean of the unchanged two, µs."""
    steps = [[measure(esprof.load(run)).step_us for run in of_round] for of_round in rounds_of(pair, folder)]
    return median(after - mean((before, again)) for before, after, again in steps)


def show_all(folder: Path) -> None:
    changed, same = judge(folder)
    for pair in PAIRS:
        mine = [one for one in changed if one.pair is pair]
        if not mine:
            continue
        true_us = truth_us(pair, folder)
        for one in mine:
            show(
                "compare_size_error",
                100 * (one.first_us / true_us - 1),
                "%",
                {"change": pair.name, "true_us": round(true_us), "named_us": round(one.first_us)},
            )
        named = sum(one.is_named for one in mine)
        show("compare_named_first", named, "pairs", {"change": pair.name, "pairs": len(mine)})
    disturbed = sum(one.is_disturbed for one in changed)
    certain = sum(one.is_named and "None of its large parts" not in one.found.verdict for one in changed)
    show(
        "compare_named_first",
        sum(one.is_named for one in changed),
        "pairs",
        {"pairs": len(changed), "beyond_noise": certain, "disturbed": disturbed},
    )
    beyond = [
        f"{pair.name}: {part.name} {part.change_us / 1e3:+.1f} ms"
        for pair, found in same
        for part in found.parts
        if not part.noise
    ]
    loud = sum(not found.step.noise or any(not part.noise for part in found.parts) for _, found in same)
    disturbed = sum(is_disturbed(found) for _, found in same)
    context = {"pairs": len(same), "disturbed": disturbed, "parts": beyond}
    show("compare_unchanged_beyond_noise", loud, "pairs", context)
    seen = [100 * (found.step.detectable_us or 0) / found.step.before_us for _, found in same]
    show("compare_detectable", median(seen), "% of a step", {"pairs": len(same), "largest": round(max(seen), 1)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--again", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.again:
        show_all(options.again)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        record_all(folder, options.rounds)
        show_all(folder)


if __name__ == "__main__":
    main()
