"""Which call launched which transfer on gloo's threads."""

import numpy as np

_CARRIED_OUT_AS = {"reduce_scatter": "all_reduce"}
"""What PyTorch has gloo do in place of a collective, and calls the transfer by: each rank keeps its part of the result."""


def carried_out_as(word: str | None) -> str | None:
    """What the transfer of a collective (`collective_word`) is called by."""
    return _CARRIED_OUT_AS.get(word or "", word)


def launched_by(called: np.ndarray, started: np.ndarray) -> np.ndarray:
    """For each transfer of one kind the place of the call that launched it, -1 where that is none of these; when they were
    `called` and have `started`, ns, both ascending.

    A process group queues its work first in, first out, so the order of issue is the order of start. Paired from the end,
    because the window may open between a call and its transfer.
    """
    before = np.searchsorted(called, started[::-1], side="right") - 1
    # From the last transfer on, each takes the last call before it that is also before the one taken last:
    # chosen[n] = min(before[n], chosen[n - 1] - 1), a running minimum of chosen[n] + n.
    index = np.arange(len(started))
    chosen = np.minimum.accumulate(before + index) - index
    return np.maximum(chosen, -1)[::-1]
