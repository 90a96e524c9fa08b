"""The nodes of all ranks without their edges: enough to compare what the ranks do.

Each column is kept in the smallest type that holds its values, and has its usual type again for some ranks at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from esprof.core.types import Rank
from esprof.replay.building.assemble import Keys, keyed
from esprof.replay.building.lookup import common_numbers
from esprof.replay.dfg import JOIN_LANE, Dfg, StepMarks
from esprof.replay.ranks.arrivals import may_be_held
from esprof.replay.ranks.narrow import narrow
from esprof.replay.skeleton.calibrated_rank import CalibratedRank

_COLUMNS = {
    "dur_ns": np.int64, "recorded_ns": np.int64, "lane": np.int32, "step": np.int32, "cls": np.int8, "name": np.int32,
    "event": np.int32, "collective": np.int32, "key": np.int32,
}  # fmt: skip
"""What is kept of each node, and its type in a `Dfg`."""

_LEFT_OUT = ("residual_ns", "contended", "bytes")
"""Columns that are 0 here. They take no memory."""

_Columns = Mapping[str, np.ndarray]
"""Those of `_COLUMNS`, in small types."""


class RankNodes(NamedTuple):
    """The nodes of a rank, as a worker returns them. Names, lanes and keys have numbers of their own."""

    columns: _Columns
    held: np.ndarray
    """As `JobNodes.held_at`."""
    keys: Keys
    """Those of no node."""
    empty: Dfg
    """The graph of the rank without nodes."""


@dataclass(frozen=True)
class JobNodes:
    """The nodes of a job apart from joins, by rank. Names, lanes and keys have the same numbers on all ranks."""

    columns: tuple[_Columns, ...]
    """Those of each rank, in the order of its `own_nodes`."""
    held_at: tuple[np.ndarray, ...]
    """Positions of the nodes of `may_be_held` among those of each rank, ascending."""
    empty: Dfg
    """The graph of all ranks without nodes. Its marks have the ranks, but name no nodes."""
    keys: int
    """More than any key."""

    @classmethod
    def of(cls, ranks: Iterable[RankNodes]) -> "JobNodes":
        """The job of these ranks, each as `nodes_of_rank` returns it."""
        columns: list[dict[str, np.ndarray]] = []
        held_at, keys, graphs = list[np.ndarray](), list[Keys](), list[Dfg]()
        names: dict[str, int] = {}
        for one in ranks:
            number = np.append(common_numbers(one.empty.names, names), -1)
            columns.append({**one.columns, "name": narrow(number[one.columns["name"]])})
            held_at.append(one.held)
            keys.append(one.keys._replace(name=number[one.keys.name], before=number[one.keys.before]))
            graphs.append(replace(one.empty, names=()))
        shifts, count = _common_keys(keys)
        first_lane = accumulate((len(one.lanes) for one in graphs), initial=0)
        for mine, shift, lane in zip(columns, shifts, first_lane, strict=False):
            mine["key"] = narrow(mine["key"] + shift[mine["key"]])
            mine["lane"] = narrow(mine["lane"].astype(np.int64) + lane)
        steps, of_ranks = graphs[0].marks.steps, tuple(one.marks.ranks[0] for one in graphs)
        nowhere = np.zeros((len(steps), len(of_ranks)), np.int64)
        empty = replace(
            graphs[0],
            names=tuple(names),
            lanes=tuple(lane for one in graphs for lane in one.lanes),
            marks=StepMarks(steps, of_ranks, nowhere, nowhere),
        )
        return cls(tuple(columns), tuple(held_at), empty, count)

    def dfg(self, at: Sequence[int]) -> Dfg:
        """The nodes of the ranks at these positions, one rank after the other; there are no edges."""
        return _dfg(self.empty, [self.columns[column] for column in at])

    def held(self) -> Dfg:
        """The nodes of `may_be_held` of all ranks, one rank after the other."""
        return _dfg(
            self.empty,
            [
                {name: values[held] for name, values in mine.items()}
                for mine, held in zip(self.columns, self.held_at, strict=True)
            ],
        )

    def at(self, ranks: Iterable[Rank]) -> tuple[int, ...]:
        """Positions of these ranks, ascending."""
        return tuple(np.searchsorted(self.empty.marks.ranks, sorted(ranks)).tolist())

    def with_durations(self, dur_ns: Mapping[int, np.ndarray]) -> "JobNodes":
        """The job whose ranks at these positions have other durations, int64[N]."""
        columns, held_at = list(self.columns), list(self.held_at)
        for at, of_rank in dur_ns.items():
            columns[at] = {**columns[at], "dur_ns": narrow(of_rank)}
            held_at[at] = narrow(np.flatnonzero(may_be_held(_dfg(self.empty, [columns[at]]))))
        return replace(self, columns=tuple(columns), held_at=tuple(held_at))


def own_nodes(dfg: Dfg) -> np.ndarray:
    """Ids of the nodes of a rank's graph (`CalibratedRank.graph`) that a `JobNodes` has, int64, ascending."""
    return np.flatnonzero(dfg.lane != JOIN_LANE)


def nodes_of_rank(rank: CalibratedRank) -> RankNodes:
    """The rank's graph without joins and edges."""
    dfg = rank.graph()
    own = own_nodes(dfg)
    columns = {name: getattr(dfg, name)[own] for name in _COLUMNS}
    by_lane = np.argsort(columns["lane"], kind="stable")
    keys = keyed({name: columns[name][by_lane] for name in ("lane", "name", "cls", "step")}, dfg.lanes)
    columns["key"][by_lane] = keys.of_node
    return RankNodes(
        {name: narrow(values) for name, values in columns.items()},
        narrow(np.flatnonzero(may_be_held(dfg)[own])),
        keys._replace(of_node=keys.of_node[:0]),
        _dfg(dfg, []),
    )


def _common_keys(keys: Sequence[Keys]) -> tuple[Iterator[np.ndarray], int]:
    """(what is to be added to each key of each rank, int64, so that counterparts share it; more than any key then)."""
    kinds: dict[tuple[str, int, int], int] = {}
    kinds_of = [common_numbers(one.kinds(), kinds) for one in keys]
    most = np.zeros(len(kinds), np.int64)
    for one, kind in zip(keys, kinds_of, strict=True):
        most[kind] = np.maximum(most[kind], one.most)
    begin = np.cumsum(most) - most
    shifts = (
        np.repeat(begin[kind] - (np.cumsum(one.most) - one.most), one.most)
        for one, kind in zip(keys, kinds_of, strict=True)
    )
    return shifts, int(most.sum()) + 1


def _dfg(like: Dfg, ranks: Sequence[_Columns]) -> Dfg:
    """The graph of these columns without edges; names, lanes and marks are those of another."""
    columns: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, dtype), *(rank[name] for rank in ranks)], dtype=dtype, casting="unsafe")
        for name, dtype in _COLUMNS.items()
    }
    nodes = len(columns["dur_ns"])
    columns |= {name: np.broadcast_to(np.int64(0), nodes) for name in _LEFT_OUT}
    columns |= {name: np.zeros(0, np.int32) for name in ("pred_idx", "pred_lag", "pred_kind")}
    return replace(like, **columns, pred_ptr=np.broadcast_to(np.int32(0), nodes + 1))
