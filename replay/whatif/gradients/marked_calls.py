"""Calls of modules that the recorder has marked, with their backward passes."""

import re
from collections.abc import Callable

import numpy as np

from esprof.replay.cpu.module_calls import is_module_call
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, ranges_of_rows, work_share
from esprof.replay.whatif.scenario import Scenario
from esprof.run.raw.call_marks import DISCARDED, FLOAT64, NOT_HELD, NOT_OPTIMIZED, SAME_INPUTS, WEIGHTS_NOT_HELD
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
    calls = calls_marked(events, SAME_INPUTS)
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
    """When and where these calls (rows) ran, with their backward passes if an earlier call of the module in the step has one
    as well: otherwise the result that is computed twice has no gradient, or the gradient of the first one is not used."""
    is_whole = _follow_one_with_backward(events, calls)
    return _joined(call_ranges(events, calls[is_whole]), ranges_of_rows(events, calls[~is_whole]))


def _follow_one_with_backward(events: Table, calls: np.ndarray) -> np.ndarray:
    """Whether each of these calls (rows) follows one of its module in its step that has a backward pass, bool[calls]."""
    start, tid, step = events.ints("start_ns"), events.ints("tid"), events.ints("step")
    end, names = start + events.ints("dur_ns"), events.codes("name")[0]
    modules = np.flatnonzero(is_module_call(events))
    modules = modules[np.argsort(start[modules], kind="stable")]
    sequence, makers = events.ints("autograd_seq", -1), _makers(events)
    made_ns = np.sort(start[makers[np.isin(sequence[makers], sequence[_is_backward(events)])]])
    found = np.zeros(len(calls), bool)
    for at, row in enumerate(calls.tolist()):
        around = modules[(tid[modules] == tid[row]) & (start[modules] <= start[row]) & (end[modules] >= end[row])]
        if len(around):
            mine = modules[(names[modules] == names[around[-1]]) & (tid[modules] == tid[row])]
            earlier = mine[(step[mine] == step[row]) & (end[mine] <= start[row])]
            found[at] = (np.searchsorted(made_ns, end[earlier]) > np.searchsorted(made_ns, start[earlier])).any()
    return found


def call_ranges(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where these calls (rows) ran, with their backward passes."""
    return with_backward(events, ranges_of_rows(events, calls))


def backward_ranges(events: Table, calls: np.ndarray) -> ThreadRanges:
    """When and where the backward passes of these calls (rows) ran."""
    return backward_of(events, ranges_of_rows(events, calls))


def with_backward(events: Table, forward: ThreadRanges) -> ThreadRanges:
    """These ranges of a forward pass, and those of its backward pass."""
    return _joined(forward, backward_of(events, forward))


def _joined(one: ThreadRanges, other: ThreadRanges) -> ThreadRanges:
    return ThreadRanges(*map(np.concatenate, zip(one, other, strict=True)))


def backward_of(events: Table, forward: ThreadRanges) -> ThreadRanges:
    """When and where the backward pass of these ranges of a forward pass ran: the nodes of the autograd graph that were
    made in them.

    Of the operations of a thread with one sequence number the last to start makes the node, whose backward operation has
    the same number. Of several threads the one with the most numbered operations counts, as each has numbers of its own.
    """
    sequence, makers = events.ints("autograd_seq", -1), _makers(events)
    if not len(makers) or not len(forward.tid):
        return ThreadRanges(*np.zeros((3, 0), np.int64))
    start = events.ints("start_ns")
    order = np.argsort(forward.begin_ns)
    at = np.searchsorted(forward.begin_ns[order], start[makers], side="right") - 1
    # Calls of one mark may be nested, as of a model and of what wraps it: the outer one ends last.
    until = np.maximum.accumulate(forward.end_ns[order])
    made = sequence[makers[(at >= 0) & (start[makers] < until[at])]]
    return ranges_of_rows(events, np.flatnonzero(_is_backward(events) & np.isin(sequence, made)))


def _makers(events: Table) -> np.ndarray:
    """Rows of the operations that make nodes of the autograd graph, by their number."""
    sequence, start, tid = events.ints("autograd_seq", -1), events.ints("start_ns"), events.ints("tid")
    makers = np.flatnonzero(events.is_kind("op") & (sequence >= 0) & (events.ints("fwd_tid", 0) <= 0))
    if not len(makers):
        return makers
    threads, counts = np.unique(tid[makers], return_counts=True)
    makers = makers[tid[makers] == threads[counts.argmax()]]
    makers = makers[np.lexsort((start[makers], sequence[makers]))]
    last: np.ndarray = makers[np.append(np.diff(sequence[makers]) > 0, True)]
    return last


def _is_backward(events: Table) -> np.ndarray:
    """Mask of the operations of backward passes that have a number."""
    mask: np.ndarray = events.is_kind("op") & (events.ints("autograd_seq", -1) >= 0) & (events.ints("fwd_tid", 0) > 0)
    return mask


def marked_share(
    now: Scenario, calls_in: Callable[[Table], np.ndarray], ranges_of: Callable[[Table, np.ndarray], ThreadRanges]
) -> np.ndarray:
    """Share of the work of each node that lies in the ranges of the calls (rows) in its rank's events, float64[N]."""
    events = {rank: now.run.events(rank) for rank in now.dfg.marks.ranks}
    return work_share(now.run, now.dfg, {rank: ranges_of(one, calls_in(one)) for rank, one in events.items()})
