"""What what-ifs promised and what came, of the ledgers of many Runs (`esprof verify`), as a table.

    python -m benchmarks.ledger RUN… [--write docs/results/accuracy.md] [--note TEXT]

Prints a JSON line for each kind of term and class of job, and for all of them together. With --write the table goes into a
marked section of a page, which is put at its end where there is none; --note says there what the figures have to be taken
with.

What the test bed changes, links and CPUs, is added to a ledger by `carried_out`.
"""

import argparse
import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import esprof
from benchmarks.figures import show
from esprof.analyzers.verified.pairs import Pairs
from esprof.analyzers.verified.promise import promise
from esprof.core.output import write_bytes
from esprof.run.logs import LEDGER, LedgerLine, ObservedOutcome, ReplayPromise

BEGIN, END = "<!-- ledger: written by `python -m benchmarks.ledger` -->", "<!-- end of the ledger -->"
_SECTION = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}\n", re.DOTALL)

HEADING = "## Promises held against what came"

TEXT = (
    "`esprof verify` ([verify.md](verify.md)) stores what replay predicts, then runs the job with and without the change, "
    "interleaved, and stores the observed step times. *error* is the absolute error of the predicted step, in % of the "
    "observed step; *held* counts the predicted intervals that contain the observed step; *noise* is the median error of "
    "the observed step over its repeats: no prediction can be better. {unkept}Measured on {hardware}, "
    "with {versions}. {note}"
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
        """How far off the step observed may be, as repeats tell, in the median; None where nothing was repeated."""
        margins = [
            100 * (outcome.observed.high_us / outcome.observed.us - 1)
            for outcome in self.outcomes
            if outcome.observed.high_us is not None
        ]
        return median(margins) if margins else None

    def row(self) -> str:
        errors = " | ".join(f"{of(self.errors):.1f}" for of in (median, mean, max))
        held = sum(outcome.held for outcome in self.outcomes)
        noise = "–" if self.noise_pct is None else f"{self.noise_pct:.1f}"
        return f"| {self.terms} | {self.job} | {self.by} | {len(self.outcomes)} | {errors} | {held} | {noise} |"

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
    parser.add_argument("--note", default="", help="a sentence for the page")
    options = parser.parse_args()
    lines = [line for run in options.runs for line in LEDGER.read(run)]
    outcomes = [line for line in lines if isinstance(line, ObservedOutcome)]
    if not outcomes:
        parser.error("these ledgers hold no outcome; `esprof verify` writes them")
    for group in [*groups(outcomes), everything(outcomes)]:
        group.show()
    show("ledger_promises_not_measured", len(unkept(lines)), "promises", {"promises": len(lines) - len(outcomes)})
    if options.write:
        page = options.write.read_text() if options.write.exists() else ""
        write_bytes(options.write, with_section(page, section(lines, options.note)).encode())


def carried_out(run: esprof.Run, spec: str, before_ms: Sequence[float], after_ms: Sequence[float]) -> ObservedOutcome:
    """Add to the ledger of `run` what replay says of `spec`, and what came of it on the test bed: mean steps in ms of the
    job as it is and with the change, a repeat each, both recorded alike. Raises NoPromise where replay declines."""
    assert run.path is not None, "a Run directory"
    made = promise(run, spec)
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


def unkept(lines: Iterable[LedgerLine]) -> list[ReplayPromise]:
    """Promises of which nothing was measured: the knob did not take, or somebody broke off."""
    lines = list(lines)
    observed = {line.id for line in lines if isinstance(line, ObservedOutcome)}
    return [line for line in lines if isinstance(line, ReplayPromise) and line.id not in observed]


def section(lines: Sequence[LedgerLine], note: str) -> str:
    outcomes = [line for line in lines if isinstance(line, ObservedOutcome)]
    table = [
        "| what-if | job | changed by | answers | median error % | mean % | worst % | held | noise % |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
        *(group.row() for group in [*groups(outcomes), everything(outcomes)]),
    ]
    left = len(unkept(lines))
    text = TEXT.format(
        hardware=hardware(),
        versions=", ".join(versions(outcomes)),
        unkept=f"Of {left} promises more nothing was measured. " if left else "",
        note=note,
    )
    parts = [BEGIN, HEADING, "", textwrap.fill(text, 120, break_on_hyphens=False), "", *table, "", END, ""]
    return "\n".join(parts)


def with_section(page: str, new: str) -> str:
    """The page with `new` for its marked section; at its end, where it has none."""
    if _SECTION.search(page):
        return _SECTION.sub(lambda found: new, page)
    return f"{page.rstrip()}\n\n{new}" if page else new


def section_of(page: str) -> str:
    """The marked section of a page; empty where it has none."""
    found = _SECTION.search(page)
    return found[0] if found else ""


def versions(outcomes: Iterable[ObservedOutcome]) -> Iterator[str]:
    known = {(name, text) for outcome in outcomes for name, text in outcome.versions.items()}
    return (f"{name} {text}" for name, text in sorted(known) if name in ("python", "torch"))


def hardware() -> str:
    """The processor of this machine, and how many of its CPUs this process may use."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} CPUs ({model[1] if model else 'of an unknown kind'})"


if __name__ == "__main__":
    main()
