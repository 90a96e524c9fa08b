"""Shrink a Run to the smallest one with the same verdict, for a public bug report or a test.

Each reduction is a function from a Run to smaller ones. One is accepted only if its result preserves the verdict, so none
has to know what a finding rests on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from esprof.analyzers.sharing.fewest import fewest
from esprof.analyzers.sharing.reductions import REDUCTIONS, Reduction, Removal, described, left_out
from esprof.run.sharing.contents import RunContents

Preserves = Callable[[RunContents], bool]
"""Whether these contents have the verdict that is to be preserved."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """What one reduction left out, and the number of events before and after it."""

    what: str
    events_before: int
    events_after: int


def shrunk(
    contents: RunContents, preserves: Preserves, tell: Callable[[str], None] = lambda what: None
) -> tuple[RunContents, tuple[LeftOut, ...]]:
    """(the smallest Run found that `preserves` the verdict, what was left out of `contents`). `tell` gets the name of each
    reduction before it is tried."""
    gone = []
    for reduction in REDUCTIONS:
        tell(reduction.what)
        before = contents
        if isinstance(reduction, Reduction):
            contents, what = _first(reduction, contents, preserves), reduction.what
        else:
            contents, what = _removed(reduction, contents, preserves)
        if contents is not before:
            gone.append(LeftOut(what=what, events_before=before.events, events_after=contents.events))
    return contents, tuple(gone)


def _first(reduction: Reduction, contents: RunContents, preserves: Preserves) -> RunContents:
    """The first candidate that preserves the verdict; `contents` if none does."""
    return next(filter(preserves, reduction.candidates(contents)), contents)


def _removed(removal: Removal, contents: RunContents, preserves: Preserves) -> tuple[RunContents, str]:
    """(the Run without as many items as possible, what was left out); the same Run if all are necessary."""
    items = list(removal.items(contents))

    def suffice(kept: Sequence[Any]) -> bool:
        return preserves(removal.without(contents, left_out(items, kept)))

    gone = left_out(items, fewest(items, suffice, removal.least(len(items))))
    if not gone:
        return contents, removal.what
    return removal.without(contents, gone), described(removal, gone, len(items))
