"""Loops of Python over operations: the same few operations that a thread calls again and again."""

from typing import NamedTuple

import numpy as np

from esprof.core.types import NS_PER_US, Ns
from esprof.replay.engine.timeline import covered_ns
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.run.kineto.steps.trace_steps import OPTIMIZER
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.schema import Table

MAX_OPERATIONS = 40
"""Most outermost operations of an iteration."""

MIN_ITERATIONS = 12
"""Least number of iterations with the same operations."""

MIN_LOOP_NS: Ns = 200 * NS_PER_US
"""Least time of a loop."""

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
    """The loops of at least `MIN_ITERATIONS` that are neither part of an optimizer nor over the layers of a model.

    Only traces that tell which modules are called can show the latter: none are found in others.
    """
    codes, texts = events.codes("name")
    is_module = np.array([*(text.startswith(MODULE_PREFIX) for text in texts), False])[codes] & events.is_kind("python")
    found: list[tuple[int, ...]] = []
    if is_module.any():
        calls = _outermost(events, codes, texts)
        modules = np.flatnonzero(is_module)
        modules = modules[np.argsort(events.ints("start_ns")[modules])]
        begun, named = events.ints("start_ns")[modules], codes[modules]
        for first, last, operations in _repetitions(calls):
            begin, end = calls.begin_ns[first], calls.end_ns[last]
            within = named[np.searchsorted(begun, begin) : np.searchsorted(begun, end)]
            iterations = (last - first + 1) // operations
            if len(np.unique(within)) <= _MAX_MODULES * iterations:
                found.append((calls.tid[first], begin, end, calls.step[first], operations, iterations))
    return OperationLoops(*np.array(sorted(found), np.int64).reshape(-1, len(OperationLoops._fields)).T)


def _outermost(events: Table, codes: np.ndarray, texts: list[str]) -> _Outermost:
    """The outermost operations of the steps. Those of backward passes and of optimizers have names of their own, so that
    they end a loop."""
    rows = np.flatnonzero(events.is_kind("op") & (events.ints("step") >= 0))
    tid, begin = events.ints("tid")[rows], events.ints("start_ns")[rows]
    end = begin + events.ints("dur_ns")[rows]
    order = np.lexsort((-end, begin, tid))
    rows, tid, begin, end = rows[order], tid[order], begin[order], end[order]
    is_outermost = np.ones(len(rows), bool)
    for thread in np.unique(tid).tolist():
        mine = np.flatnonzero(tid == thread)
        is_outermost[mine[1:]] = begin[mine[1:]] >= np.maximum.accumulate(end[mine])[:-1]
    rows, tid, begin, end = (column[is_outermost] for column in (rows, tid, begin, end))
    is_backward = np.array([*(text.startswith(AUTOGRAD_NODE) for text in texts), False])[codes[rows]]
    is_backward |= events.ints("fwd_tid", 0)[rows] > 0
    counts = ~is_backward & ~_in_optimizers(begin, events, codes, texts)
    name = np.where(counts, codes[rows], -1 - np.arange(len(rows)))
    return _Outermost(name, tid, begin, end, events.ints("step")[rows])


def _in_optimizers(at_ns: np.ndarray, events: Table, codes: np.ndarray, texts: list[str]) -> np.ndarray:
    """Whether each moment lies in a step of an optimizer, bool[moments]."""
    is_step = np.array([*(text.startswith(OPTIMIZER) for text in texts), False])[codes]
    begin = events.ints("start_ns")[is_step]
    end = begin + events.ints("dur_ns")[is_step]
    inside: np.ndarray = covered_ns(begin, end, at_ns + 1) > covered_ns(begin, end, at_ns)
    return inside


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
