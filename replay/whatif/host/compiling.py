"""Time in which torch.compile compiles, by the marks of Dynamo."""

import numpy as np

from esprof.replay.dfg import Dfg
from esprof.replay.whatif.graph.thread_ranges import ranges_of_rows, share_within
from esprof.run.run import Run
from esprof.run.schema import Table

COMPILING = "(dynamo_timed)"
"""End of the names of the ranges in which Dynamo, AOTAutograd and Inductor compile (`torch._dynamo.utils.dynamo_timed`)."""


def compile_rows(events: Table) -> np.ndarray:
    """Rows of the ranges in which torch.compile compiles, nested ones included."""
    return np.flatnonzero(events.matches("name", lambda name: name.endswith(COMPILING)) & (events.ints("tid") >= 0))


def compile_share(run: Run, dfg: Dfg) -> np.ndarray:
    """Share of the time of each node of a CPU thread in which its thread compiled, float64[N]; 0 for other nodes."""
    events = {rank: run.events(rank) for rank in dfg.marks.ranks}
    return share_within(run, dfg, {rank: ranges_of_rows(one, compile_rows(one)) for rank, one in events.items()})
