"""The nodes of all ranks without their edges: enough to compare what the ranks do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from esprof.replay.building.assemble import keys
from esprof.replay.dfg import JOIN_LANE, Dfg, Lane, StepMarks
from esprof.replay.skeleton.calibrated_rank import CalibratedRank

_COLUMNS = ("dur_ns", "recorded_ns", "lane", "step", "cls", "name", "event", "collective")
"""What is kept of each node, 37 bytes; its key takes 4 more."""

_LEFT_OUT = ("residual_ns", "contended", "bytes")
"""Columns that are 0 here. They take no memory."""


@dataclass(frozen=True)
class JobNodes:
    """The nodes of a job apart from joins, rank by rank."""

    dfg: Dfg
    """All nodes; it has no edges."""
    begin: np.ndarray
    """Where the nodes of each rank begin, and where the last ones end, int64[ranks + 1]."""

    @classmethod
    def of(cls, ranks: Sequence[Dfg]) -> "JobNodes":
        """The job of these ranks, each as `nodes_of_rank` returns it."""
        begin = [*accumulate((one.nodes for one in ranks), initial=0)]
        columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in ranks]) for name in _COLUMNS}
        lanes: list[Lane] = []
        names: dict[str, int] = {}
        for one, at in zip(ranks, begin, strict=False):
            mine = slice(at, at + one.nodes)
            columns["lane"][mine] += len(lanes)
            numbers = np.array([names.setdefault(text, len(names)) for text in one.names], np.int32)
            columns["name"][mine] = numbers[one.name]
            lanes += one.lanes
        first, last = (
            np.concatenate([at + getattr(one.marks, end) for one, at in zip(ranks, begin, strict=False)], axis=1)
            for end in ("first", "last")
        )
        marks = StepMarks(ranks[0].marks.steps, tuple(rank for one in ranks for rank in one.marks.ranks), first, last)
        key = _keys(columns, lanes)
        dfg = replace(
            ranks[0], **columns, **_empty(begin[-1]), key=key, names=tuple(names), lanes=tuple(lanes), marks=marks
        )
        return cls(dfg, np.array(begin))

    def of_rank(self, at: int, values: np.ndarray) -> np.ndarray:
        """Those of the `values` of all nodes that the rank at this position has."""
        of_rank: np.ndarray = values[self.begin[at] : self.begin[at + 1]]
        return of_rank


def own_nodes(dfg: Dfg) -> np.ndarray:
    """Ids of the nodes of a rank's graph (`CalibratedRank.graph`) that a `JobNodes` has, int64, ascending."""
    return np.flatnonzero(dfg.lane != JOIN_LANE)


def nodes_of_rank(rank: CalibratedRank) -> Dfg:
    """The rank's graph without joins and edges."""
    dfg = rank.graph()
    own = own_nodes(dfg)
    columns: dict[str, Any] = {name: getattr(dfg, name)[own] for name in (*_COLUMNS, "key")}
    first, last = (np.searchsorted(own, getattr(dfg.marks, end)) for end in ("first", "last"))
    marks = StepMarks(dfg.marks.steps, dfg.marks.ranks, first, last)
    return replace(dfg, **columns, **_empty(len(own)), marks=marks)


def _empty(nodes: int) -> dict[str, Any]:
    """The columns of so many nodes that are left out, and no edges."""
    zero = {name: np.broadcast_to(np.int64(0), nodes) for name in _LEFT_OUT}
    edges = {name: np.zeros(0, np.int32) for name in ("pred_idx", "pred_lag", "pred_kind")}
    return zero | edges | {"pred_ptr": np.broadcast_to(np.int32(0), nodes + 1)}


def _keys(columns: dict[str, np.ndarray], lanes: Sequence[Lane]) -> np.ndarray:
    """`Dfg.key` of the nodes of all ranks."""
    by_lane = np.argsort(columns["lane"], kind="stable")
    key = np.empty(len(by_lane), np.int32)
    key[by_lane] = keys({name: columns[name][by_lane] for name in ("lane", "name", "cls", "step")}, lanes)
    return key
