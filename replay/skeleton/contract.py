"""Contract a graph to its skeleton: a graph of some of its nodes, the cuts, with the same longest paths.

An edge of the skeleton leads from a cut to the next ones. Its lag is the longest path between the two that passes no other
cut. Replay is linear in (max, +): each cut ends when it does in the whole graph, to the nanosecond (Baccelli et al.,
Synchronization and Linearity, 1992, chapter 3). If all joins of collectives are cuts, each path between two cuts runs
within one rank, so that ranks can be contracted one by one.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from esprof.core.compiled import compiled, compiled_in_place
from esprof.replay.dfg import JOIN_LANE, Cls, Dfg, Edge, StepMarks
from esprof.replay.engine.longest_path import unsigned

MAX_SOURCES = 8
"""A node to which paths from more cuts matter than this becomes a cut, too, at which the paths to its followers begin.
Without that, the threads and streams of a rank would be reached by more cuts with every step."""

_NEEDLESS = -2
_ORIGIN = -1
"""The moment `t0_ns` as a source: a node without predecessor starts at its recorded start, counted from then."""

_COLUMNS_OF_ORIGIN = {
    "dur_ns": 0, "recorded_ns": 0, "residual_ns": 0, "contended": False, "lane": JOIN_LANE, "cls": Cls.WAIT,
}  # fmt: skip
"""What the origin has in the columns of a graph; its name is that of a step's start, and all else -1."""


class _Graph(NamedTuple):
    """Columns of a graph of N nodes as in `Dfg`; `delay` is the residual and the duration of each node, ns."""

    delay: np.ndarray
    least: np.ndarray
    """The shortest that what-ifs may make the delay in the skeleton, ns, int64[N]."""
    recorded: np.ndarray
    ptr: np.ndarray
    idx: np.ndarray
    lag: np.ndarray


class _Paths(NamedTuple):
    """The longest paths to the end of each node that is no cut; N nodes."""

    sources: np.ndarray
    """Number of the sources at which they begin, int64[N]."""
    source: np.ndarray
    """These cuts, or `_ORIGIN`, int32[N, MAX_SOURCES]."""
    length: np.ndarray
    """How long each path is, ns, int64[N, MAX_SOURCES]."""


class _Here(NamedTuple):
    """The longest paths to the start of one node."""

    source: np.ndarray
    length: np.ndarray
    place: np.ndarray
    """Where each source stands in `source`, int64[N + 1], that of node n at n + 1; -1 for all others."""


@dataclass(frozen=True)
class Skeleton:
    """A graph of C nodes: the origin of time, and C - 1 cuts of another graph, in its order."""

    dfg: Dfg
    """Each cut has the columns of its node. An edge stands for paths: its lag is int64, and its kind `LANE`."""
    node: np.ndarray
    """Node of the whole graph that each node is, int64[C], ascending; -1 for the origin, which is the first."""


def contract(dfg: Dfg, is_cut: np.ndarray, *, no_earlier: bool = False) -> Skeleton:
    """The skeleton of `dfg` with the cuts `is_cut` (bool[N]), those of `marks`, and those that keep it small.

    With `no_earlier`, nodes that are no cuts start no earlier than they were recorded to.
    """
    delay = dfg.residual_ns + dfg.dur_ns
    # Cuts that were asked for are those whose durations what-ifs change in the skeleton, to 0 at the least.
    least = np.where(is_cut, 0, delay)
    is_cut = is_cut.copy()
    is_cut[dfg.marks.first], is_cut[dfg.marks.last] = True, True
    graph = _Graph(delay, least, dfg.recorded_ns, unsigned(dfg.pred_ptr), unsigned(dfg.pred_idx), dfg.pred_lag)
    room = (dfg.nodes, MAX_SOURCES)
    paths = _Paths(np.zeros(dfg.nodes, np.int64), np.empty(room, np.int32), np.empty(room, np.int64))
    ptr_of_cuts, source, lag = _contract(graph, is_cut, paths, no_earlier)
    node = np.append(_ORIGIN, np.flatnonzero(is_cut))
    ptr = np.append([0, 0], ptr_of_cuts[node[1:] + 1]).astype(np.int32)
    by_source = np.lexsort((source, np.repeat(node, np.diff(ptr))))
    of_origin = _COLUMNS_OF_ORIGIN | {"name": dfg.name[dfg.marks.first[0, 0]]}
    columns: dict[str, Any] = {
        name: np.append(of_origin.get(name, -1), values[node[1:]]).astype(values.dtype)
        for name, values in dfg.columns.items()
    }
    # Of the names only those in use: the skeletons of all ranks are in memory together.
    used, columns["name"] = np.unique(columns["name"], return_inverse=True)
    columns["name"] = columns["name"].astype(dfg.name.dtype)
    first, last = (np.searchsorted(node, nodes) for nodes in (dfg.marks.first, dfg.marks.last))
    skeleton = replace(
        dfg,
        **columns,
        names=tuple(dfg.names[name] for name in used.tolist()),
        pred_ptr=ptr,
        pred_idx=np.searchsorted(node, source[by_source]).astype(np.int32),
        pred_lag=lag[by_source],
        pred_kind=np.full(len(lag), Edge.LANE, np.int8),
        marks=StepMarks(dfg.marks.steps, dfg.marks.ranks, first, last),
    )
    return Skeleton(skeleton, node)


@compiled
def _contract(
    graph: _Graph, is_cut: np.ndarray, paths: _Paths, no_earlier: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(CSR offsets of the edges that enter each cut, int64[N + 1]; source of each edge; its lag). Fills `paths`, and adds
    cuts to `is_cut`."""
    nodes, edges = len(graph.delay), 0
    here = _Here(np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.int64), np.full(nodes + 1, -1))
    ptr, source, lag = np.zeros(nodes + 1, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    for node in range(nodes):
        count = _gather(node, graph, is_cut, paths, no_earlier, here)
        if is_cut[node] or count > MAX_SOURCES:
            count = _drop_needless(count, graph.least, ptr, source, lag, here)
        if is_cut[node] or count > MAX_SOURCES:
            is_cut[node] = True
            if edges + count > len(source):
                # At least twice the room: each edge is copied once or twice in all.
                more = np.empty(len(source) + count, np.int64)
                source, lag = np.append(source, more), np.append(lag, more)
            source[edges : edges + count], lag[edges : edges + count] = here.source[:count], here.length[:count]
            edges += count
        else:
            paths.sources[node] = count
            for at in range(count):
                paths.source[node, at], paths.length[node, at] = here.source[at], here.length[at] + graph.delay[node]
        ptr[node + 1] = edges
        for at in range(count):
            here.place[here.source[at] + 1] = -1
    return ptr, source[:edges], lag[:edges]


@compiled_in_place
def _drop_needless(
    count: int, least: np.ndarray, ptr: np.ndarray, source: np.ndarray, lag: np.ndarray, here: _Here
) -> int:
    """Drop from `here` the paths that are no longer than those through another of its sources; return how many stay.

    `ptr`, `source` and `lag` are the edges of the skeleton so far.
    """
    for at in range(count):
        via = here.source[at]
        if via == _ORIGIN:
            continue
        for edge in range(ptr[via], ptr[via + 1]):
            place = here.place[source[edge] + 1]
            if place >= 0 and lag[edge] + least[via] + here.length[at] >= here.length[place]:
                here.place[source[edge] + 1] = _NEEDLESS
    left = 0
    for at in range(count):
        place = here.place[here.source[at] + 1]
        here.place[here.source[at] + 1] = -1
        if place != _NEEDLESS:
            here.place[here.source[at] + 1] = left
            here.source[left], here.length[left] = here.source[at], here.length[at]
            left += 1
    return left


@compiled_in_place
def _gather(node: int, graph: _Graph, is_cut: np.ndarray, paths: _Paths, no_earlier: bool, here: _Here) -> int:
    """Fill `here` with the paths to `node`; return how many there are."""
    count = 0
    if (no_earlier or graph.ptr[node] == graph.ptr[node + 1]) and not is_cut[node]:
        count = _reach(_ORIGIN, graph.recorded[node], count, here)
    for edge in range(graph.ptr[node], graph.ptr[node + 1]):
        before, lag = np.int64(graph.idx[edge]), graph.lag[edge]
        if is_cut[before]:
            count = _reach(before, lag, count, here)
        else:
            for at in range(paths.sources[before]):
                count = _reach(np.int64(paths.source[before, at]), paths.length[before, at] + lag, count, here)
    return count


@compiled_in_place
def _reach(source: np.int64 | int, length: int, count: int, here: _Here) -> int:
    """Note a path from `source`, of which the longest counts. Takes and returns the number of sources so far."""
    place = here.place[source + 1]
    if place < 0:
        here.place[source + 1] = count
        here.source[count], here.length[count] = source, length
        return count + 1
    here.length[place] = max(here.length[place], length)
    return count
