"""The comparison of two runs."""

import msgspec

from esprof.analyzers.comparison.answer import RunComparison
from esprof.analyzers.comparison.details import (
    collectives_that_differ,
    findings_that_differ,
    ranks_that_differ,
    saves_that_differ,
    waits_that_differ,
    without_cpu_wait,
)
from esprof.analyzers.comparison.intervals import CONFIDENCE, step_change
from esprof.analyzers.comparison.pair import RunPair
from esprof.analyzers.comparison.parts import parts
from esprof.analyzers.comparison.side import ComparedSide
from esprof.analyzers.comparison.verdict import verdict_of
from esprof.analyzers.comparison.work import code_that_differs, operators_that_differ
from esprof.analyzers.gate.baseline import differences, identity_of
from esprof.analyzers.ignore import NOTHING, Ignores
from esprof.core.errors import MismatchError
from esprof.core.step_words import in_words_of
from esprof.run.run import Run, RunWarning

_CALLED = ("before", "after")

MAX_RATIO_OF_BLOCKS = 1.5
"""Largest ratio of the numbers of operations of two blocks that are believed to be the same work."""


def compare(before: Run, after: Run, *, anyway: bool = False, ignores: Ignores = NOTHING) -> RunComparison:
    """By how much a step of `after` differs from one of `before`, and where.

    Raises MismatchError if the units of the runs differ, or if neither marks steps; and, unless `anyway`, if hardware,
    world size or versions differ. Raises InputError where a run has no graph.
    """
    _refuse_units(before, after)
    differs = differences(identity_of(before), identity_of(after), _CALLED)
    if differs and not anyway:
        raise MismatchError(
            "the runs were recorded in different settings, so that a difference may have other causes than the code: "
            + "; ".join(differs),
            remedy="Record both in one setting, or compare them with --anyway.",
        )
    return _compared(RunPair(ComparedSide.of(before, ignores), ComparedSide.of(after, ignores)), tuple(differs))


def _compared(pair: RunPair, differs: tuple[str, ...]) -> RunComparison:
    unit, step = pair.before.run.unit, step_change(*pair.steps_ns, pair.phase)
    is_plain = pair.phase == "plain"
    found = RunComparison(
        verdict="",
        unit=unit,
        phase=pair.phase,
        confidence=CONFIDENCE,
        before=pair.before.described(),
        after=pair.after.described(),
        step=step,
        without_cpu_wait=without_cpu_wait(pair, step.block),
        parts=parts(pair, step),
        ranks=ranks_that_differ(pair),
        operators=operators_that_differ(pair),
        collectives=collectives_that_differ(pair),
        code=code_that_differs(pair) if is_plain else (),
        waits=waits_that_differ(pair),
        saves=saves_that_differ(pair),
        findings=findings_that_differ(pair),
        differs=differs,
        warnings=_warnings(pair),
    )
    return msgspec.structs.replace(found, verdict=in_words_of(unit, verdict_of(found)))


def _refuse_units(before: Run, after: Run) -> None:
    units = before.unit, after.unit
    remedy = "Mark steps in both jobs, with an optimizer, prof.step() or `with esprof.step():`, and record them again."
    if units[0] != units[1]:
        raise MismatchError(
            f"a {units[0]} of the run before cannot be compared with a {units[1]} of the run after", remedy=remedy
        )
    if "window" in units:
        raise MismatchError(
            "neither run marks steps or repeats a block of work, and the length of a window says nothing of the code",
            remedy=remedy,
        )


def _warnings(pair: RunPair) -> tuple[RunWarning, ...]:
    """The warnings of both runs, each with the run that it is about."""
    found = [
        RunWarning(warning.code, f"{called}: {warning.message}", warning.ranks)
        for called, side in zip(_CALLED, pair.sides, strict=True)
        for warning in side.case.replayed.warnings
    ]
    works = [side.operations_a_step for side in pair.sides]
    if pair.before.run.unit == "block" and max(works) > MAX_RATIO_OF_BLOCKS * min(works):
        text = f"a block has {works[0]:,.0f} operations before and {works[1]:,.0f} after: they may be different work"
        found.append(RunWarning("blocks-differ", text))
    return tuple(found)
