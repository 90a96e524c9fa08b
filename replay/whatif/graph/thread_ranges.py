"""How much of the time of the nodes on CPU threads lies within given ranges of these threads."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.engine.timeline import covered_ns
from esprof.run.run import Run


class ThreadRanges(NamedTuple):
    """Ranges of time on the threads of a rank, on its own clock; ranges of one thread may overlap. Arrays of int64."""

    tid: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray


def share_within(run: Run, dfg: Dfg, ranges_of: Mapping[Rank, ThreadRanges]) -> np.ndarray:
    """Share of the time of each node of a CPU thread that lies within the ranges of its rank, float64[N]; 0 for other
    nodes."""
    share, on_cpu = np.zeros(dfg.nodes), dfg.on(LaneKind.CPU)
    for rank, ranges in ranges_of.items():
        if not len(ranges.tid):
            continue
        events, nodes = run.events(rank), dfg.nodes_of(rank)
        start, tid = events.ints("start_ns"), events.ints("tid")
        nodes = nodes[on_cpu[nodes]]
        known = nodes[dfg.event[nodes] >= 0]
        main = known[dfg.lane[known] == dfg.main_lane(rank)]
        offset_ns = dfg.clock_offset_ns(start, main)
        for lane in np.unique(dfg.lane[known]).tolist():
            thread = tid[dfg.event[known[dfg.lane[known] == lane][0]]]
            mine, here = nodes[dfg.lane[nodes] == lane], ranges.tid == thread
            begin = dfg.recorded_ns[mine] + offset_ns
            spans = ranges.begin_ns[here], ranges.end_ns[here]
            within = covered_ns(*spans, begin + dfg.dur_ns[mine]) - covered_ns(*spans, begin)
            share[mine] = within / np.maximum(dfg.dur_ns[mine], 1)
    return share
