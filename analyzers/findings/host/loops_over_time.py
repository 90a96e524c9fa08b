"""ESP408 on CPUs: recurrent layers that are called for one time step after the other."""

import re
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.findings.host.operation_runs import OperationRuns, StepRuns
from esprof.analyzers.rule import Case, Cause
from esprof.core.readable import duration
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import NS_PER_MS, Ns
from esprof.run.schema import Table

_RECURRENT = re.compile(r"aten::(gru|lstm|rnn_tanh|rnn_relu)(_cell)?")

MIN_CALLS = 10
"""Least number of calls in a row: a model has fewer recurrent layers, each of which is called once."""

MAX_GAP_NS: Ns = 6 * NS_PER_MS
"""Longest gap between two calls of a row: the loop may compute something for each time step, such as attention."""

MAX_TIMES_MEDIAN = 4.0
"""A call that takes longer than this many times the median is one of a whole sequence, and none of a row."""

MIN_SHARE_OF_STEP = 0.1
"""Least share of a step in such rows."""


def loops_over_time(case: Case) -> Iterator[Cause]:
    """Recurrent layers in loops of Python. What a single call would save is unknown."""
    rows = StepRuns.of(case, _rows)
    if rows.took_ns[rows.worst] < MIN_SHARE_OF_STEP * case.pricer.step_ns:
        return
    where = printable(rows.line.location.frame, LONGEST_NAME) if rows.line else None
    yield Cause(
        id="ESP408",
        title=f"A recurrent layer is called {rows.operations[rows.worst]:,.0f} times a step, one time step after the other, "
        f"which takes {duration(rows.took_ns[rows.worst])}" + (f", at {where}" if where else ""),
        ranks=rows.ranks,
        confidence="medium",
        evidence=rows.evidence("in_loops_per_step", "calls_per_step", where),
        advice="If its inputs do not depend on its outputs, call it once with the whole sequence: then the loop runs in "
        "C++, and what follows is computed for all time steps at once. Else compile the loop (torch.compile).",
    )


def _rows(events: Table, steps: tuple[int, ...]) -> OperationRuns:
    """The rows of calls in the forward passes of these steps: calls that follow one another closely within a step."""
    is_recurrent = events.matches("name", _RECURRENT.fullmatch)
    rows = np.flatnonzero(events.is_kind("op") & is_recurrent & np.isin(events.ints("step"), steps))
    rows = rows[events.ints("fwd_tid", 0)[rows] <= 0]
    if not len(rows):
        return OperationRuns.none()
    step, begin, dur = (events.ints(column)[rows] for column in ("step", "start_ns", "dur_ns"))
    order = np.lexsort((-dur, begin))
    step, begin, end = step[order], begin[order], (begin + dur)[order]
    reached = np.maximum.accumulate(end)
    is_outermost = np.append(True, begin[1:] >= reached[:-1])
    is_short = end - begin <= MAX_TIMES_MEDIAN * np.median((end - begin)[is_outermost])
    step, begin, end = (column[is_outermost & is_short] for column in (step, begin, end))
    is_new = (np.diff(step) != 0) | (begin[1:] - end[:-1] > MAX_GAP_NS)
    return OperationRuns.of(begin, end, np.append(0, np.cumsum(is_new)), MIN_CALLS)
