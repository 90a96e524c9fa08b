"""Time in which torch.compile compiles, by the marks of Dynamo."""

import numpy as np

from esprof.replay.dfg import Dfg
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, share_within
from esprof.run.run import Run
from esprof.run.schema import Table

COMPILING = "(dynamo_timed)"
"""End of the names of the ranges in which Dynamo, AOTAutograd and Inductor compile (`torch._dynamo.utils.dynamo_timed`)."""


def compile_rows(events: Table) -> np.ndarray:
    """Rows of the ranges in which torch.compile compiles, nested ones included."""
    codes, names = events.codes("name")
    mask = np.array([*(name.endswith(COMPILING) for name in names), False])[codes]
    rows: np.ndarray = np.flatnonzero(mask & (events.ints("tid") >= 0))
    return rows


def compile_share(run: Run, dfg: Dfg) -> np.ndarray:
    """Share of the time of each node of a CPU thread in which its thread compiled, float64[N]; 0 for other nodes."""
    return share_within(run, dfg, {rank: _ranges(run.events(rank)) for rank in dfg.marks.ranks})


def _ranges(events: Table) -> ThreadRanges:
    rows = compile_rows(events)
    start = events.ints("start_ns")[rows]
    return ThreadRanges(events.ints("tid")[rows], start, start + events.ints("dur_ns")[rows])
