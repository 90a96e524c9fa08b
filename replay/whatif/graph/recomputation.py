"""Forward operations inside backward passes: activations that are computed again (activation checkpointing)."""

import re

import numpy as np

from esprof.replay.dfg import Dfg
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.replay.whatif.graph.nested_operations import innermost_around, nested_rows
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, work_share
from esprof.run.run import Run
from esprof.run.schema import Table

_LAYER = re.compile(r"aten::(linear|conv(?!\w*_backward)\w*|\w+_norm|scaled_dot_product_attention|embedding|lstm|gru)")
"""Matches operations of a forward pass that no backward formula calls. A node that calls one computes activations again. A
gradient of a gradient (`create_graph=True`) has numbered operations inside nodes, too, but none of these."""


def recompute_share(run: Run, dfg: Dfg) -> np.ndarray:
    """Share of the time of each node that recomputes activations, float64[N]: on CPU threads, and of GPU work that was
    launched there."""
    return work_share(run, dfg, {rank: recompute_ranges(run.events(rank)) for rank in dfg.marks.ranks})


def recompute_ranges(events: Table) -> ThreadRanges:
    """The ranges of the threads of a rank in which activations are computed again: in each autograd node that does so, from
    its first forward operation to its last."""
    is_engine = events.matches("name", lambda name: name.startswith(AUTOGRAD_NODE))
    is_layer = events.matches("name", _LAYER.fullmatch)
    is_forward = (events.ints("autograd_seq", -1) >= 0) & (events.ints("fwd_tid", 0) <= 0) & ~is_engine
    rows, tid, start, end = nested_rows(events, events.is_kind("op") & (is_engine | is_forward))
    node = innermost_around(tid, start, end, is_engine[rows])
    inside = np.flatnonzero(is_forward[rows] & (node >= 0))
    recomputing = np.unique(node[inside[is_layer[rows[inside]]]])
    inside = inside[np.isin(node[inside], recomputing)]
    number = np.searchsorted(recomputing, node[inside])
    begin = np.full(len(recomputing), np.iinfo(np.int64).max)
    last = np.zeros(len(recomputing), np.int64)
    np.minimum.at(begin, number, start[inside])
    np.maximum.at(last, number, end[inside])
    return ThreadRanges(tid[recomputing], begin, last)
