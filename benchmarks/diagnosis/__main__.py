"""Faults planted in real jobs, and what `esprof diagnose` makes of them.

    python -m benchmarks.diagnosis [--set first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh]
                                   [--repeats 2] [--pairs 3] [--seeds 0 1] [--only REGEX] [--keep FOLDER]
    python -m benchmarks.diagnosis --again FOLDER        # asks today's rules about kept recordings

Each job is recorded without a fault, with its ranks apart, and with each of its faults, interleaved; a seed draws the rank
that is hit and how hard. What a fault costs is measured: the mean of all steps without profiler, less that of the job
without the fault. With pairs it is the median difference of two runs without a window that follow one another, with the
fault and without it, and its noise half the range of those. Prints tables, then a JSON line a figure. Jobs of hosts need
root; jobs of other libraries, these.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.diagnosis import eighth, eleventh, fifth, first, fourth, ninth, second, seventh, sixth, tenth, third
from benchmarks.diagnosis.carrying_out import can_run, carry_out, stored
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
from benchmarks.model_errors import write_planted

SETS = {
    "first": first.JOBS,
    "second": second.JOBS,
    "third": third.JOBS,
    "fourth": fourth.JOBS,
    "fifth": fifth.JOBS,
    "sixth": sixth.JOBS,
    "seventh": seventh.JOBS,
    "eighth": eighth.JOBS,
    "ninth": ninth.JOBS,
    "tenth": tenth.JOBS,
    "eleventh": eleventh.JOBS,
}


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
            failed = carry_out(able, folder, options.repeats, options.pairs)
        cases_judged = report(chosen, folder, measured_only=options.measured_only)
    if options.write_model_errors:
        write_model_errors(cases_judged, options)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diagnosis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--repeats", type=int, default=2, help="recordings of each case; none: pairs alone")
    parser.add_argument(
        "--pairs", type=int, default=0, help="pairs of runs for each case, without its fault and with it"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="cases whose `JOB FAULT` this matches")
    parser.add_argument("--measured-only", action="store_true", help="say what each fault costs, and ask no rules")
    parser.add_argument(
        "--write-model-errors",
        action="store_true",
        help="write what prices were off by, from which intervals are made",
    )
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


def write_model_errors(cases_judged: Iterable[Judged], options: argparse.Namespace) -> None:
    """Write what the prices were off by of faults that cost more than their noise."""
    command = f"python -m benchmarks.diagnosis --set {options.set} --pairs {options.pairs}"
    answers = [one for case in cases_judged for one in case.carried_out()]
    if not answers:
        raise SystemExit("no price to write: faults need pairs, so that the noise of their costs is known")
    write_planted(f"diagnosis-{options.set}", command, ", ".join(map(str, options.seeds)), answers)


def report(chosen: list[Case], folder: Path, *, measured_only: bool) -> list[Judged]:
    """Print all; what was judged, nothing where it is measured only."""
    recorded = list(stored(chosen, folder))
    found = list(truths(recorded))
    show_felt([Judged(truth, [], []) for truth, _ in found])
    if measured_only:
        return []
    controls: list[Control] = []
    for one in recorded:
        without = communication_us(one.case, recorded)
        for run in one.runs if one.case.is_control else ():
            findings = diagnosed(run)
            if isinstance(findings, str):
                print(f"{one.case.name}: not diagnosed: {findings}", file=sys.stderr)
            else:
                controls.append(control(one.case.job, findings, without))
    cases_judged = [judged(truth, one.runs) for truth, one in found]
    show_all(cases_judged, controls)
    return cases_judged


if __name__ == "__main__":
    sys.exit(main())
