"""ESP408 on CPUs: operations that are too short to keep a CPU busy with arithmetic."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from esprof.analyzers.findings.host.operation_runs import OperationRuns, StepRuns
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause
from esprof.analyzers.views.bubble import bubble_evidence
from esprof.core.readable import duration
from esprof.core.text import LONGEST_NAME, printable
from esprof.replay.ranks.pipeline import Pipeline
from esprof.replay.whatif.terms.small_operations import MAX_OPERATION_NS
from esprof.run.schema import Table

MIN_SHARE_OF_STEP = 0.3
"""Least share of a step that ends without small operations: every job has some."""

_SCENARIO = "small_operations=0"


def small_operations(case: Case) -> Iterator[Cause]:
    """Small operations that take much of a step of a job on CPUs, or of which fewer micro-batches would have fewer."""
    step_ns = case.pricer.step_ns
    share = (case.pricer.saving_ns(_SCENARIO) or 0.0) / step_ns
    of_half = saved_by_half(case.pipeline, share) if case.pipeline else 0.0
    pipeline = case.pipeline if case.is_worth_reporting(of_half * step_ns) else None
    if share < MIN_SHARE_OF_STEP and pipeline is None:
        return
    runs = StepRuns.of(case, _runs)
    where = printable(runs.line.text, LONGEST_NAME) if runs.line else None
    divided = f"In {pipeline.micro_batches} micro-batches, " if pipeline else ""
    count, took_ns = runs.operations[runs.worst], runs.took_ns[runs.worst]
    yield Cause(
        id="ESP408",
        title=f"{divided}{count:,.0f} operations a step take less than {duration(MAX_OPERATION_NS)} each, and "
        f"{duration(took_ns)} together" + (f", most of them at {where}" if where else ""),
        ranks=runs.ranks,
        scenario=_SCENARIO,
        share_of_scenario=of_half / share if pipeline else 1.0,
        is_bound=pipeline is None,
        certain_share=CERTAIN_SHARE,
        confidence="medium",
        evidence=runs.evidence("in_small_operations_per_step", "small_operations_per_step", where)
        | bubble_evidence(pipeline, case.breakdown),
        advice=_FEWER_MICRO_BATCHES if pipeline else _LARGER_OPERATIONS,
    )


def saved_by_half(pipeline: Pipeline, share: float) -> float:
    """What half as many micro-batches, with half as many calls, save beyond the longer bubble, as a share of a step.

    `share` is what a step without small operations saves.
    """
    half = replace(pipeline, micro_batches=pipeline.micro_batches // 2)
    return share / 2 - (half.bubble - pipeline.bubble) if half.micro_batches else 0.0


_LARGER_OPERATIONS = (
    "Calling an operation takes longer than its arithmetic here. Replace loops in Python by operations on whole tensors "
    "(for example nn.LSTM for a loop of cells), compile them (torch.compile), or compute more in each call (larger "
    "batches). The saving is an upper bound: what these operations compute then takes time elsewhere."
)
_FEWER_MICRO_BATCHES = (
    "Divide a batch into fewer, larger micro-batches: each has all of these calls, which take longer than their arithmetic. "
    "The saving is that of half as many micro-batches, which have half as many calls, less what the longer bubble costs; "
    "larger micro-batches make long operations more efficient, too."
)


def _runs(events: Table, steps: tuple[int, ...]) -> OperationRuns:
    """The small operations in a row of the thread with the most operations in these steps."""
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
    return OperationRuns.of(begin[is_small], end[is_small], number, 1)
