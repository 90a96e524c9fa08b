"""Loops of Python over operations: the same few operations that a thread calls again and again."""

from typing import NamedTuple

import numpy as np

from esprof.core.types import NS_PER_US, Ns
from esprof.replay.cpu.module_calls import is_module_call
from esprof.replay.engine.timeline import is_covered
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.replay.whatif.gradients.shared_update import update_ranges
from esprof.replay.whatif.graph.nested_operations import innermost_around, nested_rows
from esprof.run.schema import Table

MAX_OPERATIONS = 40
"""Most outermost operations of an iteration."""

MIN_ITERATIONS = 12
"""Least number of iterations with the same operations."""

MIN_LOOP_NS: Ns = 200 * NS_PER_US
"""Least time of a loop."""

COLLECTIVES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
"""Beginnings of names of collectives. They take their time because they wait for peers, not because they are called one by
one."""

_MAX_MODULES = 0.5
"""Most different modules for each iteration of a loop over data: a loop over the layers of a model calls another one each
time."""


class OperationLoops(NamedTuple):
    """Loops in the forward passes of a rank, by time on its own clock. Arrays of int64."""

    tid: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    step: np.ndarray
    operations: np.ndarray
    """Outermost operations of an iteration."""
    iterations: np.ndarray
    """Whole iterations."""


class _Outermost(NamedTuple):
    """Outermost operations, ascending by thread and time. Arrays of int64."""

    name: np.ndarray
    tid: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    step: np.ndarray


def operation_loops(events: Table) -> OperationLoops:
    """The loops of at least `MIN_ITERATIONS` that call no collective, are no part of an optimizer and not over the layers
    of a model.

    Only traces that tell which modules are called can show the latter: none are found in others.
    """
    is_module = is_module_call(events)
    found: list[tuple[int, ...]] = []
    if is_module.any():
        calls = _outermost(events)
        begun, named = events.ints("start_ns")[is_module], events.codes("name")[0][is_module]
        for first, last, operations in _repetitions(calls):
            begin, end = calls.begin_ns[first], calls.end_ns[last]
            within = named[np.searchsorted(begun, begin) : np.searchsorted(begun, end)]
            iterations = (last - first + 1) // operations
            if len(np.unique(within)) <= _MAX_MODULES * iterations:
                found.append((calls.tid[first], begin, end, calls.step[first], operations, iterations))
    return OperationLoops(*np.array(sorted(found), np.int64).reshape(-1, len(OperationLoops._fields)).T)


def _outermost(events: Table) -> _Outermost:
    """The outermost operations of the steps. Collectives and those of backward passes and of optimizers have names of their
    own, so that they end a loop."""
    rows, tid, begin, end = nested_rows(events, events.is_kind("op") & (events.ints("step") >= 0))
    is_outermost = innermost_around(tid, begin, end, np.ones(len(rows), bool)) < 0
    rows, tid, begin, end = (column[is_outermost] for column in (rows, tid, begin, end))
    is_backward = events.matches("name", lambda name: name.startswith(AUTOGRAD_NODE)) | (events.ints("fwd_tid", 0) > 0)
    updates = update_ranges(events)
    is_collective = events.matches("name", lambda name: name.startswith(COLLECTIVES))
    ends_loop = (is_backward | is_collective)[rows] | is_covered(updates.begin_ns, updates.end_ns, begin)
    name = np.where(ends_loop, -1 - np.arange(len(rows)), events.codes("name")[0][rows])
    return _Outermost(name, tid, begin, end, events.ints("step")[rows])


def _repetitions(calls: _Outermost) -> list[tuple[int, int, int]]:
    """(first call, last call, calls of an iteration) of each loop, none within another: the longest in time, and of these
    the one with the shortest iterations."""
    found = []
    for period in range(1, MAX_OPERATIONS + 1):
        same = np.ones(max(len(calls.name) - period, 0), bool)
        for column in (calls.name, calls.tid, calls.step):
            same &= column[period:] == column[:-period]
        edges = np.diff(np.concatenate(([0], same.astype(np.int8), [0])))
        first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) + period - 1
        took = calls.end_ns[last] - calls.begin_ns[first]
        is_loop = (last - first + 1 >= MIN_ITERATIONS * period) & (took >= MIN_LOOP_NS)
        columns = (-took[is_loop], first[is_loop], last[is_loop])
        found += [(longer, period, one, other) for longer, one, other in np.stack(columns, axis=1).tolist()]
    taken = np.zeros(len(calls.name), bool)
    chosen = []
    for _, period, first, last in sorted(found):
        if not taken[first : last + 1].any():
            taken[first : last + 1] = True
            chosen.append((first, last, period))
    return chosen
