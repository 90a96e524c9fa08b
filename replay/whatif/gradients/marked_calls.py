"""Calls of modules that the recorder has marked, with their backward passes."""

import re
from collections.abc import Callable

import numpy as np

from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, work_share
from esprof.replay.whatif.scenario import Scenario
from esprof.run.raw.call_marks import DISCARDED, FLOAT64, NOT_OPTIMIZED, SAME_INPUTS
from esprof.run.schema import Table

_RANDOM = re.compile(
    r"aten::(native_dropout|bernoulli|rand|normal|uniform|multinomial|exponential|poisson|geometric|cauchy|rrelu)\w*"
)
"""Matches operations that draw random numbers: a call with them has other results for the same inputs."""


def calls_marked(events: Table, *marks: str) -> np.ndarray:
    """Rows of the calls with one of these marks (`run/raw/call_marks.py`)."""
    codes, texts = events.codes("name")
    is_marked = np.array([*(text in marks for text in texts), False])
    return np.flatnonzero(events.is_kind("annotation") & is_marked[codes])


def calls_with_unused_gradients(events: Table) -> np.ndarray:
    """Rows of the calls whose backward passes compute gradients that no optimizer uses."""
    return calls_marked(events, NOT_OPTIMIZED, DISCARDED)


def calls_in_float64(events: Table) -> np.ndarray:
    """Rows of the calls of modules with parameters of 64 bits."""
    return calls_marked(events, FLOAT64)


def repeated_calls(events: Table) -> np.ndarray:
    """Rows of the calls with the inputs of another, but for those in which random numbers are drawn."""
    calls = calls_marked(events, SAME_INPUTS)
    codes, texts = events.codes("name")
    is_random = np.array([*(bool(_RANDOM.match(text)) for text in texts), False])[codes] & events.is_kind("op")
    at = np.sort(events.ints("start_ns")[is_random])
    begin = events.ints("start_ns")[calls]
    drawn = np.searchsorted(at, begin + events.ints("dur_ns")[calls]) > np.searchsorted(at, begin)
    same: np.ndarray = calls[~drawn]
    return same


def call_ranges(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where these calls (rows) ran, with their backward passes."""
    forward, backward = forward_ranges(events, calls), backward_ranges(events, calls)
    return ThreadRanges(*(np.concatenate(columns) for columns in zip(forward, backward, strict=True)))


def forward_ranges(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where these calls (rows) ran."""
    begin = events.ints("start_ns")[calls]
    return ThreadRanges(events.ints("tid")[calls], begin, begin + events.ints("dur_ns")[calls])


def backward_ranges(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where the backward passes of these calls (rows) ran."""
    began = events.ints("start_ns")[calls]
    return backward_of(events, began, began + events.ints("dur_ns")[calls])


def backward_of(events: Table, began: np.ndarray, ended: np.ndarray) -> ThreadRanges:
    """When and where the backward pass of what ran in these spans of a forward pass ran, ns: the nodes of the autograd
    graph that were made there.

    Of the operations of a thread with one sequence number the last to start makes the node, whose backward operation has
    the same number. Of several threads the one with the most numbered operations counts, as each has numbers of its own.
    """
    sequence, forward_thread = events.ints("autograd_seq", -1), events.ints("fwd_tid", 0)
    start, tid = events.ints("start_ns"), events.ints("tid")
    is_numbered = events.is_kind("op") & (sequence >= 0)
    forward = np.flatnonzero(is_numbered & (forward_thread <= 0))
    if not len(forward) or not len(began):
        return ThreadRanges(*np.zeros((3, 0), np.int64))
    threads, counts = np.unique(tid[forward], return_counts=True)
    forward = forward[tid[forward] == threads[counts.argmax()]]
    forward = forward[np.lexsort((start[forward], sequence[forward]))]
    makers = forward[np.append(np.diff(sequence[forward]) > 0, True)]
    order = np.argsort(began)
    at = np.searchsorted(began[order], start[makers], side="right") - 1
    # Calls of one mark may be nested, as of a model and of what wraps it: the outer one ends last.
    until = np.maximum.accumulate(ended[order])
    made = sequence[makers[(at >= 0) & (start[makers] < until[at])]]
    nodes = np.flatnonzero(is_numbered & (forward_thread > 0) & np.isin(sequence, made))
    return ThreadRanges(tid[nodes], start[nodes], start[nodes] + events.ints("dur_ns")[nodes])


def marked_share(
    now: Scenario, calls_in: Callable[[Table], np.ndarray], ranges_of: Callable[[Table, np.ndarray], ThreadRanges]
) -> np.ndarray:
    """Share of the work of each node that lies in the ranges of the calls (rows) in its rank's events, float64[N]."""
    events = {rank: now.run.events(rank) for rank in now.dfg.marks.ranks}
    return work_share(now.run, now.dfg, {rank: ranges_of(one, calls_in(one)) for rank, one in events.items()})
