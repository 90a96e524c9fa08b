"""Calls of modules that the recorder has marked, with their backward passes."""

import re
from collections.abc import Callable

import numpy as np

from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, ranges_of_rows, work_share
from esprof.replay.whatif.scenario import Scenario
from esprof.run.raw.call_marks import (
    DISCARDED,
    FLOAT64,
    NOT_HELD,
    NOT_OPTIMIZED,
    SAME_FORWARD,
    SAME_INPUTS,
    WEIGHTS_NOT_HELD,
)
from esprof.run.schema import Table

_RANDOM = re.compile(
    r"aten::(native_dropout|bernoulli|rand|normal|uniform|multinomial|exponential|poisson|geometric|cauchy|rrelu)\w*"
)
"""Matches operations that draw random numbers: a call with them has other results for the same inputs."""


def calls_marked(events: Table, *marks: str) -> np.ndarray:
    """Rows of the calls with one of these marks (`run/raw/call_marks.py`)."""
    return np.flatnonzero(events.is_kind("annotation") & events.matches("name", marks.__contains__))


def calls_with_unused_gradients(events: Table) -> np.ndarray:
    """Rows of the calls whose backward passes compute gradients that no optimizer uses."""
    return calls_marked(events, NOT_OPTIMIZED, DISCARDED, NOT_HELD)


def calls_with_unused_weights(events: Table) -> np.ndarray:
    """Rows of the calls whose backward passes compute gradients of weights that no optimizer uses, and others."""
    return calls_marked(events, WEIGHTS_NOT_HELD)


def calls_in_float64(events: Table) -> np.ndarray:
    """Rows of the calls of modules with parameters of 64 bits."""
    return calls_marked(events, FLOAT64)


def repeated_calls(events: Table) -> np.ndarray:
    """Rows of the calls with the inputs of another, except for those within others, or in which random numbers are drawn."""
    calls = calls_marked(events, SAME_INPUTS, SAME_FORWARD)
    at = np.sort(events.ints("start_ns")[events.is_kind("op") & events.matches("name", _RANDOM.match)])
    begin, end = events.ints("start_ns")[calls], events.ints("start_ns")[calls] + events.ints("dur_ns")[calls]
    kept = calls[np.searchsorted(at, end) == np.searchsorted(at, begin)]
    outermost: np.ndarray = kept[_is_outermost(ranges_of_rows(events, kept))]
    return outermost


def _is_outermost(ranges: ThreadRanges) -> np.ndarray:
    """Whether each range lies in no other of its thread, bool[ranges]; ranges of a thread are nested or apart."""
    order = np.lexsort((-ranges.end_ns, ranges.begin_ns, ranges.tid))
    found, outer = np.zeros(len(order), bool), (-1, -1)
    for at in order.tolist():
        tid, end = int(ranges.tid[at]), int(ranges.end_ns[at])
        if tid != outer[0] or ranges.begin_ns[at] >= outer[1]:
            found[at], outer = True, (tid, end)
    return found


def ranges_of_repeated(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where these calls (rows) ran, with their backward passes, which nobody needs if an earlier call has one."""
    is_whole = np.isin(calls, calls_marked(events, SAME_INPUTS))
    ranges = call_ranges(events, calls[is_whole]), ranges_of_rows(events, calls[~is_whole])
    return ThreadRanges(*(np.concatenate(pair) for pair in zip(*ranges, strict=True)))


def call_ranges(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where these calls (rows) ran, with their backward passes."""
    return with_backward(events, ranges_of_rows(events, calls))


def backward_ranges(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where the backward passes of these calls (rows) ran."""
    return backward_of(events, ranges_of_rows(events, calls))


def with_backward(events: Table, forward: ThreadRanges) -> ThreadRanges:
    """These ranges of a forward pass, and those of its backward pass."""
    return ThreadRanges(*(np.concatenate(pair) for pair in zip(forward, backward_of(events, forward), strict=True)))


def backward_of(events: Table, forward: ThreadRanges) -> ThreadRanges:
    """When and where the backward pass of these ranges of a forward pass ran: the nodes of the autograd graph that were
    made in them.

    Of the operations of a thread with one sequence number the last to start makes the node, whose backward operation has
    the same number. Of several threads the one with the most numbered operations counts, as each has numbers of its own.
    """
    sequence, forward_thread = events.ints("autograd_seq", -1), events.ints("fwd_tid", 0)
    start, tid = events.ints("start_ns"), events.ints("tid")
    is_numbered = events.is_kind("op") & (sequence >= 0)
    makers = np.flatnonzero(is_numbered & (forward_thread <= 0))
    if not len(makers) or not len(forward.tid):
        return ThreadRanges(*np.zeros((3, 0), np.int64))
    threads, counts = np.unique(tid[makers], return_counts=True)
    makers = makers[tid[makers] == threads[counts.argmax()]]
    makers = makers[np.lexsort((start[makers], sequence[makers]))]
    makers = makers[np.append(np.diff(sequence[makers]) > 0, True)]
    order = np.argsort(forward.begin_ns)
    at = np.searchsorted(forward.begin_ns[order], start[makers], side="right") - 1
    # Calls of one mark may be nested, as of a model and of what wraps it: the outer one ends last.
    until = np.maximum.accumulate(forward.end_ns[order])
    made = sequence[makers[(at >= 0) & (start[makers] < until[at])]]
    return ranges_of_rows(events, np.flatnonzero(is_numbered & (forward_thread > 0) & np.isin(sequence, made)))


def marked_share(
    now: Scenario, calls_in: Callable[[Table], np.ndarray], ranges_of: Callable[[Table, np.ndarray], ThreadRanges]
) -> np.ndarray:
    """Share of the work of each node that lies in the ranges of the calls (rows) in its rank's events, float64[N]."""
    events = {rank: now.run.events(rank) for rank in now.dfg.marks.ranks}
    return work_share(now.run, now.dfg, {rank: ranges_of(one, calls_in(one)) for rank, one in events.items()})
