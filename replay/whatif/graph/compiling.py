"""Time in which torch.compile compiles, by the marks of Dynamo."""

import numpy as np

from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.engine.timeline import covered_ns
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
    share = np.zeros(dfg.nodes)
    for rank in dfg.marks.ranks:
        events = run.events(rank)
        rows = compile_rows(events)
        if not len(rows):
            continue
        start, tid = events.ints("start_ns"), events.ints("tid")
        nodes = np.flatnonzero((dfg.rank == rank) & dfg.on(LaneKind.CPU))
        known = nodes[dfg.event[nodes] >= 0]
        main = known[dfg.lane[known] == dfg.main_lane(rank)]
        # Clocks of ranks are aligned in the graph: the offset of this rank's own clock.
        offset_ns = int(np.median(start[dfg.event[main]] - dfg.recorded_ns[main])) if len(main) else 0
        for lane in np.unique(dfg.lane[known]).tolist():
            thread = tid[dfg.event[known[dfg.lane[known] == lane][0]]]
            mine, ranges = nodes[dfg.lane[nodes] == lane], rows[tid[rows] == thread]
            begin = dfg.recorded_ns[mine] + offset_ns
            spans = start[ranges], (start + events.ints("dur_ns"))[ranges]
            within = covered_ns(*spans, begin + dfg.dur_ns[mine]) - covered_ns(*spans, begin)
            share[mine] = within / np.maximum(dfg.dur_ns[mine], 1)
    return share
