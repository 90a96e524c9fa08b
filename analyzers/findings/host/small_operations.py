"""ESP408 on CPUs: long runs of operations that are too short to keep a CPU busy with arithmetic."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.findings.host.operation_runs import OperationRuns, StepRuns
from esprof.analyzers.rule import Case, Cause
from esprof.core.readable import duration
from esprof.core.text import LONGEST_NAME, printable
from esprof.replay.whatif.terms.loops import MAX_OPERATION_NS
from esprof.run.schema import Table

MIN_OPERATIONS = 20
"""Least number of operations in a run."""

MIN_SHARE_OF_STEP = 0.3
"""Least share of a step in such runs."""


def small_operations(case: Case) -> Iterator[Cause]:
    """Runs of small operations that take much of a step of a job on CPUs. What larger ones would save is unknown."""
    runs = StepRuns.of(case, _runs, MIN_SHARE_OF_STEP)
    if runs is None:
        return
    where = printable(runs.line.text, LONGEST_NAME) if runs.line else None
    yield Cause(
        id="ESP408",
        title=f"{runs.operations[runs.worst]:,.0f} operations a step take less than {duration(MAX_OPERATION_NS)} each, and "
        f"{duration(runs.took_ns[runs.worst])} together" + (f", most of them at {where}" if where else ""),
        ranks=runs.ranks,
        confidence="medium",
        evidence=runs.evidence("in_runs_per_step", "small_operations_per_step", where),
        advice="Calling an operation takes longer than its arithmetic here. Replace loops in Python by operations on whole "
        "tensors (for example nn.LSTM for a loop of cells), or compile them (torch.compile).",
    )


def _runs(events: Table, steps: tuple[int, ...]) -> OperationRuns:
    """The runs of the thread with the most operations in these steps."""
    rows = np.flatnonzero(events.is_kind("op") & np.isin(events.ints("step"), steps))
    tid = events.ints("tid")[rows]
    if not len(rows):
        return OperationRuns.none()
    threads, counts = np.unique(tid, return_counts=True)
    rows = rows[tid == threads[counts.argmax()]]
    begin = events.ints("start_ns")[rows]
    end = begin + events.ints("dur_ns")[rows]
    order = np.lexsort((-end, begin))
    begin, end = begin[order], end[order]
    reached = np.append(0, np.maximum.accumulate(end)[:-1])
    outermost = begin >= reached
    begin, end, gap = begin[outermost], end[outermost], (begin - reached)[outermost]
    is_small = end - begin <= MAX_OPERATION_NS
    number = np.cumsum(~is_small | (gap > MAX_OPERATION_NS))[is_small]
    return OperationRuns.of(begin[is_small], end[is_small], number, MIN_OPERATIONS)
