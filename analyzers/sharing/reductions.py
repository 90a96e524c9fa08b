"""The ways to make a Run smaller, in the order in which they are tried: those first after which the others are quick."""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esprof.analyzers.sharing.verdict import MAX_CHANGE
from esprof.core.errors import InputError
from esprof.core.types import NS_PER_US, Ns
from esprof.replay.steps import MIN_STEPS_TO_LEAVE_FIRST_OUT, RecordedSteps, steps_of
from esprof.run.sharing import cuts, simpler
from esprof.run.sharing.contents import RunContents

_MAX_STRETCHES = 8
"""Stretches of steps of one length that are tried: those whose mean step is nearest to the window's, which is to be
preserved."""

_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Numbers of steps that are tried. Longer windows stay."""

_TIME_BEFORE = (0.0, 1.0, 10.0)
"""Rows of side tables that are left, in windows before the window: batches are made ahead."""

_JOINED_NS: tuple[Ns, ...] = tuple(us * NS_PER_US for us in (1_000, 100, 20, 5, 2))
_ROUNDED_NS: tuple[Ns, ...] = (10 * NS_PER_US, NS_PER_US, NS_PER_US // 10)

_CHUNKS = 64
"""Chunks of single events that are tried at least; a smaller chunk saves too little for the time that it takes."""


@dataclass(frozen=True)
class Reduction:
    """Smaller forms of a Run, the smallest first: the first that preserves the verdict counts."""

    what: str
    """What it leaves out, for people."""
    candidates: Callable[[RunContents], Iterator[RunContents]]


@dataclass(frozen=True)
class Removal:
    """Items that a Run may lack: as many as possible are left out."""

    what: str
    items: Callable[[RunContents], Sequence[Any]]
    without: Callable[[RunContents, Collection[Any]], RunContents]
    least: Callable[[int], int] = lambda items: 1
    """Smallest chunk of items that is tried, by the number of all."""
    shows_names: bool = False
    """Whether the items are names of esprof's own that say what was left out."""


def _one_window(contents: RunContents) -> Iterator[RunContents]:
    steps = _steps(contents)
    if steps is not None and len(steps.windows) > 1:
        yield _only(contents, steps, steps.all)


def _fewer_steps(contents: RunContents) -> Iterator[RunContents]:
    steps = _steps(contents)
    if steps is None:
        return
    took = steps.measured_ns({})
    mean = took[np.isin(steps.all, steps.steady)].mean()
    for length in (length for length in _LENGTHS if length < len(took)):
        first = 1 if length >= MIN_STEPS_TO_LEAVE_FIRST_OUT else 0
        apart = {at: abs(took[at + first : at + length].mean() / mean - 1) for at in range(len(took) - length + 1)}
        near = sorted((at for at in apart if apart[at] <= 2 * MAX_CHANGE), key=lambda at: apart[at])
        for at in near[:_MAX_STRETCHES]:
            yield _only(contents, steps, steps.all[at : at + length])


def _only(contents: RunContents, steps: RecordedSteps, some: Sequence[int]) -> RunContents:
    return cuts.only_steps(contents, some, _spans(steps, some))


def _spans(steps: RecordedSteps, some: Sequence[int]) -> cuts.Spans:
    return {rank: (of[some[0]][0], of[some[-1]][1]) for rank, of in steps.boundaries.items()}


def _steps(contents: RunContents) -> RecordedSteps | None:
    """The steps of the Run; None without any, as of a job that hung."""
    try:
        return steps_of(contents.run())
    except InputError:
        return None


def _shorter_sides(contents: RunContents) -> Iterator[RunContents]:
    steps = _steps(contents)
    if steps is not None:
        spans = _spans(steps, steps.all)
        yield from _shorter(contents, *(cuts.sides_within(contents, spans, before) for before in _TIME_BEFORE))


def _shorter(contents: RunContents, *candidates: RunContents) -> Iterator[RunContents]:
    return (one for one in candidates if one.rows < contents.rows)


def _least_chunk(items: int) -> int:
    return max(1, -(-items // _CHUNKS))


REDUCTIONS: tuple[Reduction | Removal, ...] = (
    Reduction("other windows", _one_window),
    Removal("parts of the run", cuts.parts_of, cuts.without_parts, shows_names=True),
    Removal("names of events", cuts.names_of, cuts.without_names),
    Reduction("steps of the window", _fewer_steps),
    Reduction("steps outside the window", lambda contents: _shorter(contents, cuts.without_unprofiled(contents))),
    Reduction("rows of side tables outside the window", _shorter_sides),
    Removal("rows of side tables", cuts.side_rows_of, cuts.without_side_rows, least=_least_chunk),
    Reduction(
        "work of the GPU joined with its neighbours",
        lambda contents: _shorter(contents, *(simpler.joined(contents, reach) for reach in _JOINED_NS)),
    ),
    Removal("single events", cuts.moments_of, cuts.without_moments, least=_least_chunk),
    Removal("columns", simpler.columns_of, simpler.without_columns, shows_names=True),
    Reduction("digits of times", lambda contents: (simpler.rounded(contents, to) for to in _ROUNDED_NS)),
    Reduction("large numbers of calls", lambda contents: iter([simpler.renumbered(contents)])),
)


def described(reduction: Reduction | Removal, left_out: Sequence[Any], of: int) -> str:
    """What a reduction left out, in words: `parts of the run: stages, samples`."""
    if isinstance(reduction, Reduction):
        return reduction.what
    if reduction.shows_names:
        return f"{reduction.what}: {', '.join(left_out)}"
    return f"{reduction.what}: {len(left_out):,} of {of:,}"


def left_out(items: Sequence[Hashable], kept: Sequence[Hashable]) -> list[Hashable]:
    stays = set(kept)
    return [item for item in items if item not in stays]
