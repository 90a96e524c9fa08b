"""How much of the time of nodes is work of given ranges of CPU threads."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine.timeline import covered_ns, is_covered
from esprof.run.run import Run
from esprof.run.schema import Table


class ThreadRanges(NamedTuple):
    """Ranges of time on the threads of a rank, on its own clock; ranges of one thread may overlap. Arrays of int64."""

    tid: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray


def ranges_of_rows(events: Table, rows: np.ndarray) -> ThreadRanges:
    """When and where these rows of a rank's events ran."""
    begin = events.ints("start_ns")[rows]
    return ThreadRanges(events.ints("tid")[rows], begin, begin + events.ints("dur_ns")[rows])


class ThreadNodes(NamedTuple):
    """The nodes of a CPU thread of a rank."""

    tid: int
    nodes: np.ndarray
    """Ids, int64[nodes]."""
    begin_ns: np.ndarray
    """When each was recorded to begin, on the rank's own clock, int64[nodes]."""


def thread_nodes(run: Run, dfg: Dfg, rank: Rank) -> Iterator[ThreadNodes]:
    """Those of each thread of the rank with recorded events."""
    events, nodes = run.events(rank), dfg.nodes_of(rank)
    tid = events.ints("tid")
    nodes = nodes[dfg.on(LaneKind.CPU)[nodes]]
    known = nodes[dfg.event[nodes] >= 0]
    offset_ns = dfg.clock_offset_ns(events.ints("start_ns"), known[dfg.lane[known] == dfg.main_lane(rank)])
    for lane in np.unique(dfg.lane[known]).tolist():
        mine = nodes[dfg.lane[nodes] == lane]
        thread = int(tid[dfg.event[known[dfg.lane[known] == lane][0]]])
        yield ThreadNodes(thread, mine, dfg.recorded_ns[mine] + offset_ns)


def share_within(run: Run, dfg: Dfg, ranges_of: Mapping[Rank, ThreadRanges]) -> np.ndarray:
    """Share of the time of each node of a CPU thread that lies within the ranges of its rank, float64[N]; 0 for other
    nodes."""
    share = np.zeros(dfg.nodes)
    for rank, ranges in ranges_of.items():
        if not len(ranges.tid):
            continue
        for thread in thread_nodes(run, dfg, rank):
            mine, here, begin = thread.nodes, ranges.tid == thread.tid, thread.begin_ns
            spans = ranges.begin_ns[here], ranges.end_ns[here]
            within = covered_ns(*spans, begin + dfg.dur_ns[mine]) - covered_ns(*spans, begin)
            share[mine] = within / np.maximum(dfg.dur_ns[mine], 1)
    return share


def work_share(run: Run, dfg: Dfg, ranges_of: Mapping[Rank, ThreadRanges]) -> np.ndarray:
    """Share of the time of each node that is work of the ranges of its rank, float64[N]: within them on CPU threads, and
    launched there on the GPU."""
    share = share_within(run, dfg, ranges_of)
    is_kernel = dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMPUTE) & (dfg.event >= 0)
    for rank, of_rank in ranges_of.items():
        if not len(of_rank.tid):
            continue
        nodes = dfg.nodes_of(rank)
        nodes = nodes[is_kernel[nodes]]
        share[nodes] = _is_launched_in(run.events(rank), dfg.event[nodes], of_rank)
    return share


def _is_launched_in(events: Table, kernels: np.ndarray, ranges: ThreadRanges) -> np.ndarray:
    """Whether each kernel (row) was launched within the ranges, bool[kernels]."""
    launch = launches_of(events, kernels)
    moment, tid = events.ints("start_ns")[launch], events.ints("tid")[launch]
    found = np.zeros(len(kernels), bool)
    for thread in np.unique(ranges.tid).tolist():
        mine = ranges.tid == thread
        found |= (launch >= 0) & (tid == thread) & is_covered(ranges.begin_ns[mine], ranges.end_ns[mine], moment)
    return found


def launches_of(events: Table, kernels: np.ndarray) -> np.ndarray:
    """Row of the call that launched each kernel (row), int64[kernels]; -1 where it was not recorded."""
    correlation = events.ints("correlation", -1)
    calls = np.flatnonzero(events.is_kind("runtime") & (correlation >= 0))
    if not len(calls):
        return np.full(len(kernels), -1)
    calls = calls[np.argsort(correlation[calls])]
    launch = calls[np.minimum(np.searchsorted(correlation[calls], correlation[kernels]), len(calls) - 1)]
    return np.where(correlation[launch] == correlation[kernels], launch, -1)
