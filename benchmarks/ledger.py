"""Predicted and observed steps of the ledgers of many Runs (`esprof verify`), as a table.

    python -m benchmarks.ledger RUN… [--write docs/results/accuracy.md]

Prints a JSON line for each kind of term and class of job, and for all of them together. With --write the table becomes the
section `ledger` of a page (`benchmarks.sections`). `carried_out` adds to a ledger what the test bed changes: links and CPUs.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import esprof
from benchmarks.figures import hardware, show, table
from benchmarks.sections import write_sections
from esprof.analyzers.verified.pairs import Pairs
from esprof.analyzers.verified.prediction import predict
from esprof.run.logs import LEDGER, LedgerLine, ObservedOutcome, ReplayPrediction

COLUMNS = (
    "what-if",
    "job",
    "changed by",
    ">answers",
    ">median error %",
    ">mean %",
    ">worst %",
    ">held",
    ">noise %",
)


@dataclass(frozen=True)
class Group:
    """The outcomes of one kind of term on one class of job."""

    terms: str
    job: str
    by: str
    outcomes: Sequence[ObservedOutcome]

    @property
    def errors(self) -> list[float]:
        return [abs(outcome.error_pct) for outcome in self.outcomes]

    @property
    def held_pct(self) -> float:
        return 100 * sum(outcome.held for outcome in self.outcomes) / len(self.outcomes)

    @property
    def noise_pct(self) -> float | None:
        """Median error of the observed step over its repeats; None where nothing was repeated."""
        margins = [
            100 * (outcome.observed.high_us / outcome.observed.us - 1)
            for outcome in self.outcomes
            if outcome.observed.high_us is not None
        ]
        return median(margins) if margins else None

    def row(self) -> tuple[str, ...]:
        errors = (f"{of(self.errors):.1f}" for of in (median, mean, max))
        held = sum(outcome.held for outcome in self.outcomes)
        noise = "–" if self.noise_pct is None else f"{self.noise_pct:.1f}"
        return self.terms, self.job, self.by, str(len(self.outcomes)), *errors, str(held), noise

    def show(self) -> None:
        context = {"terms": self.terms, "job": self.job, "by": self.by, "answers": len(self.outcomes)}
        for name, of in (("median", median), ("mean", mean), ("worst", max)):
            show(f"ledger_error_{name}", of(self.errors), "%", context)
        show("ledger_intervals_held", self.held_pct, "%", context)
        if self.noise_pct is not None:
            show("ledger_noise_median", self.noise_pct, "%", context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args()
    lines = [line for run in options.runs for line in LEDGER.read(run)]
    outcomes = [line for line in lines if isinstance(line, ObservedOutcome)]
    if not outcomes:
        parser.error("these ledgers hold no outcome; `esprof verify` writes them")
    for group in [*groups(outcomes), everything(outcomes)]:
        group.show()
    all_of_them = {"predictions": len(lines) - len(outcomes)}
    show("ledger_predictions_not_measured", len(unmeasured(lines)), "predictions", all_of_them)
    if options.write:
        write_sections(options.write, {"ledger": section(lines)})


def carried_out(run: esprof.Run, spec: str, before_ms: Sequence[float], after_ms: Sequence[float]) -> ObservedOutcome:
    """Add the prediction for `spec` to the ledger of `run`, and the outcome on the test bed.

    `before_ms` and `after_ms` are the mean steps of each repeat, recorded alike, without and with the change. Raises
    NoPrediction where replay declines.
    """
    assert run.path is not None, "a Run directory"
    made = predict(run, spec)
    pairs = Pairs([1e3 * ms for ms in before_ms], [1e3 * ms for ms in after_ms])
    outcome = pairs.outcome(made, "test bed")
    for line in (made, outcome):
        LEDGER.append(run.path, line)
    return outcome


def groups(outcomes: Iterable[ObservedOutcome]) -> list[Group]:
    """The outcomes by terms, class of job, and what made the change, in that order."""
    found = defaultdict[tuple[str, str, str], list[ObservedOutcome]](list)
    for outcome in outcomes:
        found[", ".join(f"`{term}`" for term in sorted(outcome.terms)), str(outcome.job), outcome.by].append(outcome)
    return [Group(*key, of) for key, of in sorted(found.items())]


def everything(outcomes: Sequence[ObservedOutcome]) -> Group:
    return Group("**all**", "", "", outcomes)


def unmeasured(lines: Iterable[LedgerLine]) -> list[ReplayPrediction]:
    """Predictions without an outcome: the change could not be made, or `verify` was interrupted."""
    lines = list(lines)
    observed = {line.id for line in lines if isinstance(line, ObservedOutcome)}
    return [line for line in lines if isinstance(line, ReplayPrediction) and line.id not in observed]


def section(lines: Sequence[LedgerLine]) -> str:
    """The table of all outcomes, with hardware and versions below it."""
    outcomes = [line for line in lines if isinstance(line, ObservedOutcome)]
    left = len(unmeasured(lines))
    text = f"Measured on {hardware()}, with {', '.join(versions(outcomes))}."
    if left:
        text += f" Predictions without a measurement: {left}."
    rows = [group.row() for group in [*groups(outcomes), everything(outcomes)]]
    return f"{table(COLUMNS, rows)}\n\n{text}"


def versions(outcomes: Iterable[ObservedOutcome]) -> Iterator[str]:
    known = {(name, text) for outcome in outcomes for name, text in outcome.versions.items()}
    return (f"{name} {text}" for name, text in sorted(known) if name in ("python", "torch"))


if __name__ == "__main__":
    main()
