"""`esprof validate` as a function: what a run holds, what is broken or missing, and what is declined on it."""

from collections.abc import Iterator, Sequence

from esprof import replay
from esprof.analyzers.device_only import is_device_only
from esprof.analyzers.validity.answer import DeclinedTerms, RankParts, ReplayTrial, Validation
from esprof.analyzers.validity.parts import broken, parts_of, unrecorded_of
from esprof.core import readable
from esprof.core.errors import InputError
from esprof.replay.answer import ReplayAnswer
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.terms import TERMS
from esprof.run.run import Run, RunWarning, WarningCode

_FAULTS = frozenset(
    {
        WarningCode.RANK_MISSING,
        WarningCode.STILL_RUNNING,
        WarningCode.TABLE_UNREADABLE,
        "rank-unreadable",
        "stacks-unreadable",
        "trace-unreadable",
    }
)
"""Codes of warnings that name broken or missing data. Other warnings say how complete data is understood."""

_NEEDS_A_FILE = "assign"
"""The what-if term that cannot be tried without a plan."""


def validate(run: Run) -> Validation:
    """What `run` holds, what is broken or missing, and what esprof declines on it.

    Everything that declines is asked: the run is read completely and replayed, and each what-if term is priced once.
    """
    ranks = tuple(parts_of(run, meta) for meta in run.meta.ranks)
    faults = [warning for warning in run.warnings if warning.code in _FAULTS]
    faults += [fault for rank in ranks for fault in broken(rank)]
    unnamed = sorted(set(run.missing_ranks).difference(*(fault.ranks for fault in faults)))
    if unnamed:
        text = f"nothing was recorded of {readable.ranks(unnamed)}"
        faults.append(RunWarning(WarningCode.RANK_MISSING, text, tuple(unnamed)))
    answer, reason = _tried(_without_broken(run, ranks))
    noticed = answer.warnings if answer is not None else run.warnings
    return Validation(
        whole=not faults,
        source=run.meta.source,
        unit=run.unit,
        world_size=run.world_size,
        missing_ranks=run.missing_ranks,
        ranks=ranks,
        faults=tuple(faults),
        unrecorded=tuple(unrecorded_of(run, ranks)),
        replay=ReplayTrial(answered=False, reason=reason) if answer is None else _trial(answer),
        answered=() if answer is None else tuple(one.spec for one in answer.what_if if one.answered),
        declined=() if answer is None else tuple(_declined(answer)),
        clocks=() if answer is None else answer.clocks,
        warnings=tuple(warning for warning in noticed if warning not in faults),
    )


def examples() -> list[str]:
    """A scenario for each kind of what-if term. A regular expression is one that matches everything."""
    return [kind.examples[0].replace("REGEX", ".") for kind in TERMS.values() if kind.name != _NEEDS_A_FILE]


def _without_broken(run: Run, ranks: Sequence[RankParts]) -> Run:
    """The run without ranks whose events are broken."""
    gone = [rank.rank for rank in ranks if rank.parts["events"].state == "broken"]
    if not gone:
        return run
    text = f"the events of {readable.ranks(gone)} cannot be read"
    return run.without(gone, RunWarning("rank-unreadable", text, tuple(gone)))


def _tried(run: Run) -> tuple[ReplayAnswer | None, str]:
    """The replay of `run` with an example of each what-if, or else the reason why it has none."""
    if not any(len(run.events(rank)) for rank in run.ranks):
        return None, "no window was recorded"
    if is_device_only(run):
        return None, "no CPU event was recorded (ProfilerActivity.CPU)"
    try:
        return replay.answer(Replayed.of(run), examples()), ""
    except InputError as error:
        return None, error.reason


def _trial(answer: ReplayAnswer) -> ReplayTrial:
    error = answer.known_error_pct
    return ReplayTrial(
        answered=True,
        steps=tuple(step.step for step in answer.steps),
        error_pct=abs(answer.strict_error_pct) if error is None else error,
        explained_pct=answer.explained_pct,
    )


def _declined(answer: ReplayAnswer) -> Iterator[DeclinedTerms]:
    """The declined terms by reason, in the order of the terms."""
    reasons: dict[str, list[str]] = {}
    for one in answer.what_if:
        if not one.answered:
            reasons.setdefault(one.reason or "no reason given", []).append(one.spec)
    for reason, terms in reasons.items():
        yield DeclinedTerms(terms=tuple(terms), reason=reason)
