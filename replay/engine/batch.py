"""Many scenarios at once: what-ifs that scale times by class, replayed side by side over one graph.

A node has a row of end times, a column for each scenario. When its last follower has read the row, a later node gets it: so
few rows are in use at a time that they stay in the processor's cache. An end time is kept as its difference from the end in
the unchanged graph, a whole number of ns, which float64 holds exactly: only the scaled times themselves are rounded.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.replay.dfg import Dfg
from esprof.replay.engine.longest_path import ends, unsigned

_SCENARIOS_AT_ONCE = 64
"""Number of scenarios that run side by side: fewer leave the processor waiting, the rows of more do not fit its cache."""
_UNUSED = 2**32 - 1
"""No node: the last follower of a node whose row has been given back (`_share`)."""


class _Order(NamedTuple):
    """Which node waits for which, N nodes and E edges, and in which rows their times stand."""

    ptr: np.ndarray
    """CSR offsets, uint32[N + 1]: the edges that enter node n are those from ptr[n] to before ptr[n + 1]."""
    row: np.ndarray
    """Row of each node, uint32[N]."""
    pred_row: np.ndarray
    """Row of the predecessor of each edge, uint32[E]."""
    slack: np.ndarray
    """When the predecessor of each edge lets the node start, less when the node is ready, both in the unchanged graph, ns,
    int64[E]; never above 0."""


class _Times(NamedTuple):
    """What each of N nodes takes, and the class by which that is scaled; int64[N], ns, and int32[N]."""

    dur: np.ndarray
    residual: np.ndarray
    dur_class: np.ndarray
    """Class of each node's duration, a row of `_Tile.factor`; -1 leaves the duration as it is."""
    residual_class: np.ndarray
    """Class of each node's residual, a row of `_Tile.factor`; -1 leaves the residual as it is."""


class _Tile(NamedTuple):
    """Up to `_SCENARIOS_AT_ONCE` scenarios, K; C classes; R rows in use."""

    factor: np.ndarray
    """How many times as fast each class is in each scenario, float64[C, K]."""
    late: np.ndarray
    """How much later the node of each row ends than in the unchanged graph, ns, float64[R, K]."""
    seen: np.ndarray
    """Ids of the nodes to be observed, int64, ascending."""
    observed: np.ndarray
    """How much later each node of `seen` ends than in the unchanged graph, ns, float64[len(seen), K]."""


@dataclass(frozen=True)
class _BatchRows:
    """Which row holds the times of which node, and the times of the unchanged graph; `row` to `slack` as in `_Order`."""

    count: int
    """Number of rows, R: far fewer than nodes."""
    row: np.ndarray
    pred_row: np.ndarray
    slack: np.ndarray
    end: np.ndarray
    """End of each node in the unchanged graph, int64[N], ns since the graph's `t0_ns`."""


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
        # The kernels meet nodes in ascending order: each is observed once, and `back` restores the order of `observe`.
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
        for first in range(0, scenarios, _SCENARIOS_AT_ONCE):
            some = np.ascontiguousarray(factor[:, first : first + _SCENARIOS_AT_ONCE], np.float64)
            width = some.shape[1]
            tile = _Tile(some, np.empty((rows.count, width)), seen, np.empty((len(seen), width)))
            _run(graph, times, tile)
            end[:, first : first + width] = rows.end[seen][:, None] + tile.observed.astype(np.int64)
        return end[back]

    def ends_after(self, observe: np.ndarray, longer: np.ndarray) -> np.ndarray:
        """When the nodes `observe` end in each of K scenarios, int64[len(observe), K], ns since the graph's `t0_ns`.

        `longer`, float64[N, K], says by how many whole ns each node takes longer in each scenario than in the graph.
        """
        # Nodes in ascending order, each once, as in `ends`.
        seen, back = np.unique(np.asarray(observe, np.int64), return_inverse=True)
        rows = self._rows
        graph = _Order(unsigned(self.dfg.pred_ptr), rows.row, rows.pred_row, rows.slack)
        end = np.empty((len(seen), longer.shape[1]), np.int64)
        for first in range(0, longer.shape[1], _SCENARIOS_AT_ONCE):
            some = np.ascontiguousarray(longer[:, first : first + _SCENARIOS_AT_ONCE], np.float64)
            observed = np.empty((len(seen), some.shape[1]))
            _run_longer(graph, some, np.empty((rows.count, some.shape[1])), seen, observed)
            end[:, first : first + some.shape[1]] = rows.end[seen][:, None] + observed.astype(np.int64)
        return end[back]

    @cached_property
    def _rows(self) -> _BatchRows:
        return _rows_of(self.dfg)


def _rows_of(dfg: Dfg) -> _BatchRows:
    """Replay the unchanged graph once, and give its nodes their rows."""
    ptr, idx = unsigned(dfg.pred_ptr), unsigned(dfg.pred_idx)
    end = ends(dfg, dfg.dur_ns, dfg.residual_ns)
    row, pred_row = np.empty(dfg.nodes, np.uint32), np.empty(dfg.edges, np.uint32)
    last = np.arange(dfg.nodes, dtype=np.uint32)
    count = _share(ptr, idx, last, np.empty(dfg.nodes, np.uint32), row, pred_row)
    slack = np.empty(dfg.edges, np.int64)
    # A node ends its residual and its duration after it was ready: their difference from the end is when it was ready.
    _measure(ptr, idx, dfg.pred_lag, end, end - dfg.dur_ns - dfg.residual_ns, slack)
    return _BatchRows(count, row, pred_row, slack, end)


@compiled_in_place
def _share(
    ptr: np.ndarray, idx: np.ndarray, last: np.ndarray, free: np.ndarray, row: np.ndarray, pred_row: np.ndarray
) -> int:
    """Give each node a row that no other node needs any more, as linear scan allocates registers; return how many there are.

    Fills `row` and `pred_row`. `last` holds the id of each node, `free` is a stack of rows with room for one per node.
    """
    # Ids ascend: what is written last is the last follower. A node without followers keeps its own id.
    for node in range(len(row)):
        for edge in range(ptr[node], ptr[node + 1]):
            last[idx[edge]] = node
    count, spare = 0, 0
    for node in range(len(row)):
        # The node takes its row before its predecessors give theirs back: it reads those while it writes its own.
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
    """Fill `slack` (`_Order`) from when each node ended and when it was `ready`, ns."""
    for node in range(len(ready)):
        for edge in range(ptr[node], ptr[node + 1]):
            slack[edge] = end[idx[edge]] + lag[edge] - ready[node]


@compiled_in_place
def _run(graph: _Order, times: _Times, tile: _Tile) -> None:
    """Replay all scenarios of a tile: fill its `observed`."""
    seen = 0  # How many of `tile.seen`, which ascends, have been passed.
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
    """Replay scenarios in which each node takes `longer` ns more, float64[N, K]: fill `observed`."""
    passed = 0  # How many of `seen`, which ascends, have been passed.
    for node in range(len(graph.row)):
        row = graph.row[node]
        _wait(node, row, graph, late)
        for k in range(late.shape[1]):
            late[row, k] += longer[node, k]
        if passed < len(seen) and seen[passed] == node:
            for k in range(late.shape[1]):
                observed[passed, k] = late[row, k]
            passed += 1


@compiled_in_place
def _wait(node: int, row: int, graph: _Order, late: np.ndarray) -> None:
    """Set the node's row to how much later its predecessors let it start than in the unchanged graph, ns.

    A predecessor that ends `late` later lets the node start `late + slack` later than it was ready: the maximum holds.
    """
    first, stop = graph.ptr[node], graph.ptr[node + 1]
    if first == stop:
        late[row] = 0
        return
    # Most nodes have one predecessor or two: one pass for both. With one, `second` is that one again, and changes nothing.
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
    """Add to the node's row by how much `time` (ns), scaled as the class `number` says, differs from `time` itself."""
    if number >= 0 and time > 0:
        for k in range(tile.late.shape[1]):
            tile.late[row, k] += np.rint(time / tile.factor[number, k]) - time
