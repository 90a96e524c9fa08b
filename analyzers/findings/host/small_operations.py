"""ESP408 on CPUs: long runs of operations that are too short to keep a CPU busy with arithmetic."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause
from esprof.analyzers.samples.sampled_lines import seen_within
from esprof.core.readable import duration
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import NS_PER_US, Ns
from esprof.run.schema import Table

MAX_OPERATION_NS: Ns = 50 * NS_PER_US
"""Longest small operation, and longest gap between two of them: calling an operation takes PyTorch some microseconds."""

MIN_OPERATIONS = 20
"""Least number of operations in a run."""

MIN_SHARE_OF_STEP = 0.3
"""Least share of a step in such runs."""


class _Runs(NamedTuple):
    """Runs of small operations on the thread of a rank. Arrays of int64."""

    begin_ns: np.ndarray
    end_ns: np.ndarray
    operations: np.ndarray


def small_operations(case: Case) -> Iterator[Cause]:
    """Runs of small operations that take much of a step of a job on CPUs. What larger ones would save is unknown."""
    steps = case.replayed.steps.steady
    runs = {rank: _runs(case.run.events(rank), steps) for rank in case.replayed.built.dfg.marks.ranks}
    took = {rank: float((of.end_ns - of.begin_ns).sum()) / len(steps) for rank, of in runs.items()}
    worst = max(took, key=lambda rank: took[rank])
    if took[worst] < MIN_SHARE_OF_STEP * case.pricer.step_ns:
        return
    count = runs[worst].operations.sum() / len(steps)
    seen = seen_within(case.job.samples, worst, np.stack([runs[worst].begin_ns, runs[worst].end_ns], axis=1))
    where = printable(seen.text, LONGEST_NAME) if seen else None
    yield Cause(
        id="ESP408",
        title=f"{count:,.0f} operations a step take less than {duration(MAX_OPERATION_NS)} each, and "
        f"{duration(took[worst])} together" + (f", most of them at {where}" if where else ""),
        ranks=tuple(rank for rank, one in took.items() if one >= took[worst] / 2),
        confidence="medium",
        evidence={
            "in_runs_per_step": by_rank({rank: round(one) for rank, one in took.items()}, "ns"),
            "small_operations_per_step": by_rank(
                {rank: round(of.operations.sum() / len(steps)) for rank, of in runs.items()}
            ),
            **({"source_line": Evidence(where)} if where else {}),
        },
        advice="Calling an operation takes longer than its arithmetic here. Replace loops in Python by operations on whole "
        "tensors (for example nn.LSTM for a loop of cells), or compile them (torch.compile).",
    )


def _runs(events: Table, steps: tuple[int, ...]) -> _Runs:
    """The runs of the thread with the most operations in these steps."""
    rows = np.flatnonzero(events.is_kind("op") & np.isin(events.ints("step"), steps))
    tid = events.ints("tid")[rows]
    if not len(rows):
        return _Runs(*np.zeros((3, 0), np.int64))
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
    _, first, operations = np.unique(number, return_index=True, return_counts=True)
    last = first + operations - 1
    is_run = operations >= MIN_OPERATIONS
    return _Runs(begin[is_small][first[is_run]], end[is_small][last[is_run]], operations[is_run])
