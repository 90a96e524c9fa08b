"""Buffers of a model, such as statistics and tables, that DDP sends from one rank to all others before a forward pass."""

from typing import NamedTuple, Self

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, Edge
from esprof.replay.engine.timeline import is_covered
from esprof.replay.whatif.graph.selections import matched
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, ranges_of_rows, thread_nodes, work_share
from esprof.run.run import Run
from esprof.run.schema import Table

_FORWARD = "DistributedDataParallel.forward"
"""Annotation of DDP around the sending of buffers and the model's forward pass."""
_UNPACK = "aten::unflatten_dense_tensors"
"""Last operation but for copies of each broadcast of buffers (torch, `broadcast_coalesced` in `comm.cpp`)."""


class SentBuffers(NamedTuple):
    """What a job does to send buffers."""

    communication: np.ndarray
    """Mask of the matched broadcasts' communication, on all ranks, bool[N]."""
    share: np.ndarray
    """Share of the time of each node that is work to pack, launch and unpack them, float64[N]."""

    @classmethod
    def of(cls, run: Run, dfg: Dfg) -> Self:
        ranges = {rank: _ranges(run.events(rank)) for rank in dfg.marks.ranks}
        sent = matched(dfg, "broadcast")
        arrivals = dfg.of(Cls.WAIT) & np.isin(dfg.collective, dfg.collective[sent])
        edges = np.flatnonzero((dfg.pred_kind == Edge.LAUNCH) & arrivals[dfg.pred_target])
        within = np.zeros(dfg.nodes, bool)
        for rank in dfg.marks.ranks:
            within |= _end_within(run, dfg, rank, ranges[rank])
        of_buffers = dfg.collective[dfg.pred_target[edges[within[dfg.pred_idx[edges]]]]]
        return cls(sent & np.isin(dfg.collective, of_buffers), work_share(run, dfg, ranges))


def _ranges(events: Table) -> ThreadRanges:
    """From the start of each forward pass of DDP until the last buffers are unpacked; only of passes that send buffers."""
    passes = ranges_of_rows(events, np.flatnonzero(events.matches("name", _FORWARD.__eq__)))
    unpacked = ranges_of_rows(events, np.flatnonzero(events.matches("name", _UNPACK.__eq__)))
    inside = (
        (unpacked.tid == passes.tid[:, None])
        & (unpacked.begin_ns >= passes.begin_ns[:, None])
        & (unpacked.end_ns <= passes.end_ns[:, None])
    )
    sends = inside.any(axis=1)
    last_ns = np.max(np.where(inside, unpacked.end_ns, 0), axis=1, initial=0)
    return ThreadRanges(passes.tid[sends], passes.begin_ns[sends], last_ns[sends])


def _end_within(run: Run, dfg: Dfg, rank: Rank, ranges: ThreadRanges) -> np.ndarray:
    """Mask of the nodes of the rank's CPU threads that end within the ranges, bool[N]."""
    mask = np.zeros(dfg.nodes, bool)
    for thread in thread_nodes(run, dfg, rank):
        here = ranges.tid == thread.tid
        end_ns = thread.begin_ns + dfg.dur_ns[thread.nodes]
        mask[thread.nodes] = is_covered(ranges.begin_ns[here], ranges.end_ns[here], end_ns)
    return mask
