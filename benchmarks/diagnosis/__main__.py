"""Faults planted in real jobs, and what `esprof diagnose` makes of them.

    python -m benchmarks.diagnosis [--set first|second|third|fourth] [--repeats 2] [--seeds 0 1] [--only REGEX]
                                   [--keep FOLDER]
    python -m benchmarks.diagnosis --again FOLDER        # asks today's rules about kept recordings

Each job is recorded without a fault, with its ranks apart, and with each of its faults, in turns; a seed draws the rank
that is hit and how hard. What a fault costs is measured: the mean of all steps without profiler, less that of the job
without the fault. Prints tables, then a JSON line a figure. Jobs of hosts need root; jobs of other libraries, these.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.diagnosis import first, fourth, second, third
from benchmarks.diagnosis.carrying_out import can_run, carry_out, kept
from benchmarks.diagnosis.cases import Case, cases
from benchmarks.diagnosis.judge import (
    Control,
    Judged,
    communication_us,
    control,
    diagnosed,
    judged,
    truths,
)
from benchmarks.diagnosis.tables import show_all, show_felt

SETS = {"first": first.JOBS, "second": second.JOBS, "third": third.JOBS, "fourth": fourth.JOBS}


def main() -> int:
    options = _parser().parse_args()
    chosen = asked_for(cases(SETS[options.set], options.seeds), options.only)
    if not chosen:
        print(f"no case matches {options.only.pattern!r}", file=sys.stderr)
        return 2
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.again or options.keep or Path(scratch)
        if not options.again:
            able = [case for case in chosen if not _skipped(case)]
            failed = carry_out(able, folder, options.repeats)
        report(chosen, folder, measured_only=options.measured_only)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diagnosis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="cases whose `JOB FAULT` this matches")
    parser.add_argument("--measured-only", action="store_true", help="say what each fault costs, and ask no rules")
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--keep", type=Path, help="folder for the recordings; those already there are not made again")
    folders.add_argument("--again", type=Path, metavar="FOLDER", help="ask about the recordings that were kept there")
    return parser


def asked_for(every: Iterable[Case], only: re.Pattern[str]) -> list[Case]:
    """The cases whose name matches, and the controls against which they are measured."""
    some = list(every)
    jobs = {(case.job.name, case.seed) for case in some if only.search(case.name)}
    return [case for case in some if only.search(case.name) or (case.is_control and (case.job.name, case.seed) in jobs)]


def _skipped(case: Case) -> bool:
    reason = can_run(case)
    if reason:
        print(f"{case.name}: skipped, {reason}", file=sys.stderr)
    return reason is not None


def report(chosen: list[Case], folder: Path, *, measured_only: bool) -> None:
    recorded = list(kept(chosen, folder))
    found = list(truths(recorded))
    show_felt([Judged(truth, [], []) for truth, _ in found])
    if measured_only:
        return
    controls: list[Control] = []
    for one in recorded:
        without = communication_us(one.case, recorded)
        for run in one.runs if one.case.is_control else ():
            findings = diagnosed(run)
            if isinstance(findings, str):
                print(f"{one.case.name}: not diagnosed: {findings}", file=sys.stderr)
            else:
                controls.append(control(one.case.job, findings, without))
    show_all([judged(truth, one.runs) for truth, one in found], controls)


if __name__ == "__main__":
    sys.exit(main())
