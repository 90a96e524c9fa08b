"""Match calls with the collectives that they launched on gloo's threads."""

import numpy as np

_CARRIED_OUT_AS = {"reduce_scatter": "all_reduce"}
"""Collectives that PyTorch runs on gloo as another one, whose name the work has: each rank keeps its share of the result."""


def carried_out_as(word: str | None) -> str | None:
    """The collective that gloo runs for `word` (`collective_word`)."""
    return _CARRIED_OUT_AS.get(word or "", word)


def launched_by(called: np.ndarray, started: np.ndarray) -> np.ndarray:
    """Index of the call that launched each collective of one kind, -1 for none of these. `called` and `started` are their
    times, ns, both ascending.

    A process group queues its work first in, first out, so launch order is start order. Pairs are made from the end, because
    the window may open between a call and its collective.
    """
    before = np.searchsorted(called, started[::-1], side="right") - 1
    # From the last collective on, each takes the last call before it that is also before the one taken last:
    # chosen[n] = min(before[n], chosen[n - 1] - 1), a running minimum of chosen[n] + n.
    index = np.arange(len(started))
    chosen = np.minimum.accumulate(before + index) - index
    return np.maximum(chosen, -1)[::-1]
