"""Backward passes of a rank, from its events."""

from dataclasses import dataclass

import numpy as np

from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.run.schema import Table


@dataclass(frozen=True)
class BackwardPasses:
    """The backward passes of a rank in order of time, and their autograd nodes. P passes, N nodes."""

    begin_ns: np.ndarray
    """int64[P], start of the first autograd node of each pass."""
    end_ns: np.ndarray
    """int64[P], end of the last."""
    node_row: np.ndarray
    """int64[N], row of each autograd node in the event table, by start."""

    def of(self, at_ns: np.ndarray) -> np.ndarray:
        """The pass that runs at each time, int64; -1 for none."""
        before = np.searchsorted(self.begin_ns, at_ns, side="right") - 1
        inside = (before >= 0) & (at_ns <= self.end_ns[before]) if len(self.end_ns) else np.zeros(len(at_ns), bool)
        return np.where(inside, before, -1)


def backward_passes(events: Table) -> BackwardPasses:
    """The backward passes among these events. A forward operation that makes a node separates one pass from the next."""
    is_engine = events.matches("name", lambda name: name.startswith(AUTOGRAD_NODE)) & events.is_kind("op")
    node = np.flatnonzero(is_engine)
    start = events.ints("start_ns")
    node = node[np.argsort(start[node], kind="stable")]
    begin, end = start[node], start[node] + events.ints("dur_ns")[node]
    last_end = np.maximum.accumulate(end) if len(end) else end
    is_forward = events.is_kind("op") & ~is_engine & (events.ints("autograd_seq") >= 0) & (events.ints("fwd_tid") <= 0)
    forward = np.sort(start[is_forward])
    if len(begin):
        # What runs inside a node makes no new pass.
        around = np.searchsorted(begin, forward, side="right") - 1
        forward = forward[(around < 0) | (forward >= last_end[np.maximum(around, 0)])]
    number = np.searchsorted(forward, begin, side="right")
    first = np.flatnonzero(np.diff(number, prepend=-1))
    return BackwardPasses(
        begin_ns=begin[first],
        end_ns=np.maximum.reduceat(end, first) if len(first) else end[:0],
        node_row=node,
    )
