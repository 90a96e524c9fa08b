"""The backward pass of calls: which call made each node of the autograd graph."""

import numpy as np

from esprof.analyzers.ops.calls import RankCalls
from esprof.analyzers.ops.nesting import nearest, with_inner
from esprof.run.schema import Table


def backward_ns(events: Table, calls: RankCalls, times_ns: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """For each of `times_ns` (of each call, ns): the time of the autograd nodes that were made in each call, ns."""
    node, maker = made_by(events, calls)
    found = []
    for times in times_ns:
        own = np.zeros(len(calls.row), np.int64)
        np.add.at(own, maker, times[node])
        found.append(with_inner(calls.enclosing, own))
    return tuple(found)


def made_by(events: Table, calls: RankCalls) -> tuple[np.ndarray, np.ndarray]:
    """(index of an autograd node, index of the operation that made it), for the outermost nodes with a known maker.

    A forward operation shares its sequence number with its backward operation. PyTorch gives every operation the number
    that the next node will have: of those with one number, the last to start makes the node. Each thread counts for itself,
    so only operations of one thread are makers: of the one with most of them. What runs inside a node, as activations that
    are computed again do, makes nodes of other graphs.
    """
    sequence, forward_tid = (events.ints(name, -1)[calls.row] for name in ("autograd_seq", "fwd_tid"))
    is_numbered = events.is_kind("op")[calls.row] & (sequence >= 0)
    is_node = is_numbered & (forward_tid > 0)
    around = np.append(nearest(calls.enclosing, is_node), -1)[calls.enclosing]
    node = np.flatnonzero(is_node & (around < 0))
    forward = np.flatnonzero(is_numbered & ~is_node & (around < 0))
    forward = forward[_of_busiest_thread(events.ints("tid")[calls.row[forward]])]
    # Calls of a thread are sorted by start, so the last of equal numbers is at the end of its run in a stable order.
    forward = forward[np.argsort(sequence[forward], kind="stable")]
    at = np.searchsorted(sequence[forward], sequence[node], side="right") - 1
    known = at >= 0
    known[known] = sequence[forward[at[known]]] == sequence[node[known]]
    return node[known], forward[at[known]]


def _of_busiest_thread(tid: np.ndarray) -> np.ndarray:
    if not len(tid):
        return np.zeros(0, bool)
    threads, counts = np.unique(tid, return_counts=True)
    mine: np.ndarray = tid == threads[np.argmax(counts)]
    return mine
