"""Delta debugging: the fewest items that still do what all of them do."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item", bound=Hashable)


def fewest(items: Sequence[_Item], suffice: Callable[[Sequence[_Item]], bool], least: int = 1) -> list[_Item]:
    """Items of which no chunk of `least` can be left out, in their order; `suffice` holds for all items, and for the result.

    Chunks of neighbours are left out, large ones first: ddmin without its complements (Zeller and Hildebrandt, Simplifying
    and Isolating Failure-Inducing Input, 2002), as Hypothesis deletes chunks. That takes about twice as many tests as items
    stay, times the logarithm of all of them.
    """
    kept = list(items)
    size = len(kept)
    while size >= least and kept:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if suffice(rest):
                kept = rest
            else:
                at += size
        size = min(size - 1, -(-size // 2)) if size > 1 else 0
    return kept
