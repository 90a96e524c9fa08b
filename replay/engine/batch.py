"""Many scenarios at once: what-ifs that scale times by class, run side by side over one graph.

A node needs one row of moments, a column for each scenario, and only until its last follower has read it. So few rows are in
use at a time that they stay in the processor's cache. A moment is kept as its distance from the same moment in the graph as
it is, a whole number of nanoseconds: in float64 nothing is ever rounded but the scaled times themselves.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.compiled import compiled_in_place
from esprof.replay.dfg import Dfg
from esprof.replay.engine.longest_path import ends, unsigned

_TILE = 64
"""Scenarios that run side by side: fewer leave the processor waiting, more push one another out of its cache."""
_UNUSED = 2**32 - 1


class _Order(NamedTuple):
    """Who waits for whom: N nodes, E edges; times in ns."""

    ptr: np.ndarray
    row: np.ndarray
    """Row of each node, uint32[N]."""
    pred_row: np.ndarray
    """Row of each predecessor, uint32[E]."""
    slack: np.ndarray
    """How much later than the node became ready its predecessor let it, int64[E], never above 0."""


class _Times(NamedTuple):
    """What each node takes, and the class by which that is scaled; N nodes, times in ns."""

    dur: np.ndarray
    residual: np.ndarray
    dur_class: np.ndarray
    residual_class: np.ndarray


class _Tile(NamedTuple):
    """Up to `_TILE` scenarios, K; C classes; R rows in use."""

    factor: np.ndarray
    """float64[C, K]."""
    late: np.ndarray
    """How much later a node ends than in the graph as it is, ns, float64[R, K]."""
    seen: np.ndarray
    """Nodes to be observed, ascending."""
    observed: np.ndarray
    """How much later those end, float64[len(seen), K]."""


@dataclass(frozen=True)
class _Rows:
    """Which row holds the moments of which node, and the graph as it is."""

    count: int
    row: np.ndarray
    pred_row: np.ndarray
    slack: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class Batch:
    """A graph made ready for many scenarios."""

    dfg: Dfg

    def ends(
        self, observe: np.ndarray, factor: np.ndarray, dur_class: np.ndarray, residual_class: np.ndarray
    ) -> np.ndarray:
        """When the nodes `observe` end in each of K scenarios, int64[len(observe), K], ns since the graph's `t0_ns`.

        `factor`, float[C, K], says how many times as fast each of C classes is in each scenario: 1.0 leaves it, infinity
        removes it. `dur_class`, int[N], is the class that scales the duration of each node, `residual_class` that of its
        residual; -1 leaves them. Scaled times are rounded to the nanosecond, so that each scenario ends when a replay of its
        own would. Raises ValueError for a class that is not in `factor`.
        """
        if max(dur_class.max(), residual_class.max()) >= len(factor):
            raise ValueError(f"a class beyond the {len(factor)} of the table of factors")
        seen, back = np.unique(np.asarray(observe, np.int64), return_inverse=True)
        rows = self._rows
        graph = _Order(unsigned(self.dfg.pred_ptr), rows.row, rows.pred_row, rows.slack)
        times = _Times(
            self.dfg.dur_ns,
            self.dfg.residual_ns,
            np.asarray(dur_class, np.int32),
            np.asarray(residual_class, np.int32),
        )
        scenarios = factor.shape[1]
        end = np.empty((len(seen), scenarios), np.int64)
        for first in range(0, scenarios, _TILE):
            some = np.ascontiguousarray(factor[:, first : first + _TILE], np.float64)
            width = some.shape[1]
            tile = _Tile(some, np.empty((rows.count, width)), seen, np.empty((len(seen), width)))
            _run(graph, times, tile)
            end[:, first : first + width] = rows.end[seen][:, None] + tile.observed.astype(np.int64)
        return end[back]

    def ends_after(self, observe: np.ndarray, longer: np.ndarray) -> np.ndarray:
        """When the nodes `observe` end in each of K scenarios, int64[len(observe), K], ns since the graph's `t0_ns`.

        `longer`, float64[N, K], says by how many whole nanoseconds each node takes longer in each scenario than it did.
        """
        seen, back = np.unique(np.asarray(observe, np.int64), return_inverse=True)
        rows = self._rows
        graph = _Order(unsigned(self.dfg.pred_ptr), rows.row, rows.pred_row, rows.slack)
        end = np.empty((len(seen), longer.shape[1]), np.int64)
        for first in range(0, longer.shape[1], _TILE):
            some = np.ascontiguousarray(longer[:, first : first + _TILE], np.float64)
            observed = np.empty((len(seen), some.shape[1]))
            _run_longer(graph, some, np.empty((rows.count, some.shape[1])), seen, observed)
            end[:, first : first + some.shape[1]] = rows.end[seen][:, None] + observed.astype(np.int64)
        return end[back]

    @cached_property
    def _rows(self) -> _Rows:
        return _rows_of(self.dfg)


def _rows_of(dfg: Dfg) -> _Rows:
    ptr, idx = unsigned(dfg.pred_ptr), unsigned(dfg.pred_idx)
    end = ends(dfg, dfg.dur_ns, dfg.residual_ns)
    row, pred_row = np.empty(dfg.nodes, np.uint32), np.empty(dfg.edges, np.uint32)
    last = np.arange(dfg.nodes, dtype=np.uint32)
    count = _share(ptr, idx, last, np.empty(dfg.nodes, np.uint32), row, pred_row)
    slack = np.empty(dfg.edges, np.int64)
    _measure(ptr, idx, dfg.pred_lag, end, end - dfg.dur_ns - dfg.residual_ns, slack)
    return _Rows(count, row, pred_row, slack, end)


@compiled_in_place
def _share(
    ptr: np.ndarray, idx: np.ndarray, last: np.ndarray, free: np.ndarray, row: np.ndarray, pred_row: np.ndarray
) -> int:
    """Give each node a row that nobody needs any more, as registers are given by linear scan; returns how many there are.

    `last` holds the id of each node, `free` is room for as many rows as there are nodes.
    """
    for node in range(len(row)):
        for edge in range(ptr[node], ptr[node + 1]):
            last[idx[edge]] = node
    count, spare = 0, 0
    for node in range(len(row)):
        # Before those of its predecessors are given back: it reads them while it writes its own.
        if spare > 0:
            spare -= 1
            row[node] = free[spare]
        else:
            row[node] = count
            count += 1
        for edge in range(ptr[node], ptr[node + 1]):
            source = idx[edge]
            pred_row[edge] = row[source]
            if last[source] == node:
                last[source] = _UNUSED
                free[spare] = row[source]
                spare += 1
        if last[node] == node:
            free[spare] = row[node]
            spare += 1
    return count


@compiled_in_place
def _measure(
    ptr: np.ndarray, idx: np.ndarray, lag: np.ndarray, end: np.ndarray, ready: np.ndarray, slack: np.ndarray
) -> None:
    for node in range(len(ready)):
        for edge in range(ptr[node], ptr[node + 1]):
            slack[edge] = end[idx[edge]] + lag[edge] - ready[node]


@compiled_in_place
def _run(graph: _Order, times: _Times, tile: _Tile) -> None:
    """Replay all scenarios of a tile."""
    seen = 0
    for node in range(len(graph.row)):
        row = graph.row[node]
        _wait(node, row, graph, tile.late)
        _scale(row, times.dur[node], times.dur_class[node], tile)
        _scale(row, times.residual[node], times.residual_class[node], tile)
        if seen < len(tile.seen) and tile.seen[seen] == node:
            for k in range(tile.late.shape[1]):
                tile.observed[seen, k] = tile.late[row, k]
            seen += 1


@compiled_in_place
def _run_longer(graph: _Order, longer: np.ndarray, late: np.ndarray, seen: np.ndarray, observed: np.ndarray) -> None:
    """Replay scenarios in which each node takes so much longer."""
    place = 0
    for node in range(len(graph.row)):
        row = graph.row[node]
        _wait(node, row, graph, late)
        for k in range(late.shape[1]):
            late[row, k] += longer[node, k]
        if place < len(seen) and seen[place] == node:
            for k in range(late.shape[1]):
                observed[place, k] = late[row, k]
            place += 1


@compiled_in_place
def _wait(node: int, row: int, graph: _Order, late: np.ndarray) -> None:
    """How much later the predecessors of a node let it start."""
    first, stop = graph.ptr[node], graph.ptr[node + 1]
    if first == stop:
        late[row] = 0
        return
    # Most nodes have one predecessor or two: one pass for both.
    second = min(first + 1, stop - 1)
    one, its_slack = graph.pred_row[first], graph.slack[first]
    other, other_slack = graph.pred_row[second], graph.slack[second]
    for k in range(late.shape[1]):
        late[row, k] = max(late[one, k] + its_slack, late[other, k] + other_slack)
    for edge in range(first + 2, stop):
        other, other_slack = graph.pred_row[edge], graph.slack[edge]
        for k in range(late.shape[1]):
            late[row, k] = max(late[row, k], late[other, k] + other_slack)


@compiled_in_place
def _scale(row: int, time: int, number: int, tile: _Tile) -> None:
    """Add by how much the scaled time differs from the time as it is."""
    if number >= 0 and time > 0:
        for k in range(tile.late.shape[1]):
            tile.late[row, k] += np.rint(time / tile.factor[number, k]) - time
