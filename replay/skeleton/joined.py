"""Join the skeletons of ranks, which share the joins of their collectives, to the skeleton of the job."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from esprof.replay.building.lookup import common_numbers
from esprof.replay.building.node_records import edges_of
from esprof.replay.dfg import JOIN_LANE, Dfg, Edge, Lane, StepMarks
from esprof.replay.engine import topology
from esprof.replay.skeleton.contract import Skeleton

_COLUMNS = (
    "dur_ns", "recorded_ns", "residual_ns", "contended", "lane", "step", "cls", "name", "event", "collective", "bytes",
    "key",
)  # fmt: skip


class CyclesAcrossRanks(Exception):
    """The graphs of the ranks form a cycle together: which of their edges are wrong shows only in the whole graph."""


@dataclass(frozen=True)
class JobSkeleton:
    """The skeleton of a job, whose first node is the origin of time."""

    dfg: Dfg
    rank_at: np.ndarray
    """Position of the rank in which the paths of each edge run, int32[E]."""
    joins: np.ndarray
    """Ids of the joins, in order of their collectives, int64."""

    @cached_property
    def collectives(self) -> np.ndarray:
        """Numbers of the matched collectives, ascending."""
        numbers: np.ndarray = self.dfg.collective[self.joins]
        return numbers

    def of_collectives(self, numbers: np.ndarray) -> np.ndarray:
        """Ids of the joins of these collectives."""
        found: np.ndarray = self.joins[np.searchsorted(self.collectives, numbers)]
        return found


def join(skeletons: Sequence[Skeleton]) -> JobSkeleton:
    """The skeleton of a job from those of its ranks, whose times have one origin. Raises CyclesAcrossRanks."""
    parts = [one.dfg for one in skeletons]
    is_join = [(dfg.lane == JOIN_LANE) & (dfg.collective >= 0) for dfg in parts]
    met = np.unique(np.concatenate([dfg.collective[mask] for dfg, mask in zip(parts, is_join, strict=True)]))
    # The origin is node 0; joins follow it, and then the other cuts of each rank.
    number, count = [], 1 + len(met)
    for dfg, mask in zip(parts, is_join, strict=True):
        ids = np.zeros(dfg.nodes, np.int64)
        ids[mask] = 1 + np.searchsorted(met, dfg.collective[mask])
        own = np.flatnonzero(~mask)[1:]
        ids[own] = count + np.arange(len(own))
        number.append(ids)
        count += len(own)
    source, target, lag, rank_at = (
        np.concatenate(column) for column in zip(*map(_edges, range(len(parts)), parts, number), strict=True)
    )
    columns, lanes, names = _columns(parts, number, count)
    in_order = topology.sort(columns["recorded_ns"], edges_of(source, target, Edge.RENDEZVOUS))
    if len(in_order.dropped):
        raise CyclesAcrossRanks
    new = np.empty(count, np.int64)  # The inverse of the order: the new number of each node.
    new[in_order.order] = np.arange(count)
    by_target = np.argsort(new[target] * count + new[source], kind="stable")
    marks = parts[0].marks
    first, last = (
        np.concatenate([new[ids[getattr(dfg.marks, end)]] for dfg, ids in zip(parts, number, strict=True)], axis=1)
        for end in ("first", "last")
    )
    dfg = Dfg(
        t0_ns=parts[0].t0_ns,
        names=names,
        lanes=lanes,
        marks=StepMarks(marks.steps, tuple(rank for dfg in parts for rank in dfg.marks.ranks), first, last),
        pred_ptr=np.append(0, np.cumsum(np.bincount(new[target], minlength=count))).astype(np.int32),
        pred_idx=new[source[by_target]].astype(np.int32),
        pred_lag=lag[by_target],
        pred_kind=np.full(len(lag), Edge.LANE, np.int8),
        **{name: values[in_order.order] for name, values in columns.items()},
    )
    return JobSkeleton(dfg, rank_at[by_target], new[1 : 1 + len(met)])


def _edges(at: int, dfg: Dfg, number: np.ndarray) -> tuple[np.ndarray, ...]:
    """(source, target, lag, position of the rank) of each edge of a rank's skeleton; `number` is that of each node."""
    return number[dfg.pred_idx], number[dfg.pred_target], dfg.pred_lag, np.full(dfg.edges, at, np.int32)


def _columns(
    parts: Sequence[Dfg], number: Sequence[np.ndarray], count: int
) -> tuple[dict[str, Any], tuple[Lane, ...], tuple[str, ...]]:
    """(columns of all `count` nodes, lanes, names) from those of each rank's skeleton."""
    columns = {name: np.empty(count, getattr(parts[0], name).dtype) for name in _COLUMNS}
    lanes: list[Lane] = []
    names: dict[str, int] = {}
    for dfg, ids in zip(parts, number, strict=True):
        for name in _COLUMNS:
            columns[name][ids] = getattr(dfg, name)
        columns["lane"][ids] += np.where(dfg.lane == JOIN_LANE, 0, len(lanes))
        columns["name"][ids] = common_numbers(dfg.names, names)[dfg.name]
        lanes += dfg.lanes
    return columns, tuple(lanes), tuple(names)
