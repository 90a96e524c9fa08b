"""Small random graphs for property tests, and reference implementations in plain Python."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind, StepMarks

LANES = 3


def dfg_of(
    lane: Sequence[int],
    dur: Sequence[int],
    edges: Sequence[tuple[int, int, int]],
    *,
    recorded: Sequence[int] | None = None,
    residual: Sequence[int] | None = None,
) -> Dfg:
    """A graph of these nodes and edges (source, target, lag)."""
    nodes = len(lane)
    ordered = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    target = np.array([edge[1] for edge in ordered], np.int64)
    zeros = np.zeros(nodes, np.int64)
    start = np.array(recorded if recorded is not None else zeros, np.int64)
    columns = {
        "dur_ns": np.array(dur, np.int64),
        "residual_ns": zeros if residual is None else np.array(residual, np.int64),
        "recorded_ns": start,
        "contended": np.zeros(nodes, bool),
        "lane": np.array(lane, np.int32),
        "step": np.zeros(nodes, np.int32),
        "cls": np.full(nodes, Cls.CPU, np.int8),
        "name": np.arange(nodes, dtype=np.int32),
        "event": np.full(nodes, -1, np.int32),
        "collective": np.full(nodes, -1, np.int32),
        "bytes": zeros,
        "key": np.arange(nodes, dtype=np.int32),
        "pred_ptr": np.searchsorted(target, np.arange(nodes + 1)).astype(np.int32),
        "pred_idx": np.array([edge[0] for edge in ordered], np.int32),
        "pred_lag": np.array([edge[2] for edge in ordered], np.int32),
        "pred_kind": np.full(len(ordered), Edge.WAIT, np.int8),
    }
    return Dfg(
        t0_ns=0,
        names=tuple(f"op {node}" for node in range(nodes)),
        lanes=tuple(Lane(0, LaneKind.CPU, f"lane {number}") for number in range(LANES)),
        marks=StepMarks((0,), (0,), np.array([[0]]), np.array([[nodes - 1]])),
        **columns,
    )


@st.composite
def graphs(draw, *, longest: int = 50, least_lag: int = -20, in_order: bool = True) -> Dfg:
    """Up to 25 nodes on three lanes or none; edges lead from lower to higher ids if `in_order`, else in any order."""
    nodes = draw(st.integers(1, 25))

    def each(values):
        return draw(st.lists(values, min_size=nodes, max_size=nodes))

    names = range(nodes) if in_order else draw(st.permutations(range(nodes)))
    edges = [
        (names[source], names[target], draw(st.integers(least_lag, 20)))
        for target in range(1, nodes)
        for source in draw(st.sets(st.integers(0, target - 1), max_size=3))
    ]
    return dfg_of(
        each(st.integers(-1, LANES - 1)),
        each(st.integers(0, longest)),
        edges,
        recorded=each(st.integers(0, 10 * longest)),
        residual=each(st.sampled_from([0, 0, 0, 7, 13])),
    )


def predecessors(dfg: Dfg, node: int) -> list[tuple[int, int]]:
    """Source and lag of each edge to `node`."""
    edges = slice(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])
    return list(zip(dfg.pred_idx[edges].tolist(), dfg.pred_lag[edges].tolist(), strict=True))


def ready(dfg: Dfg, node: int, end: dict[int, int]) -> int:
    """Earliest start of `node` given the ends of its predecessors."""
    moments = [end[source] + lag for source, lag in predecessors(dfg, node)]
    return max(moments, default=int(dfg.recorded_ns[node]))


def longest_path(dfg: Dfg, dur: np.ndarray, residual: np.ndarray) -> list[int]:
    """End of each node of a graph in topological order."""
    end: dict[int, int] = {}
    for node in range(dfg.nodes):
        end[node] = ready(dfg, node, end) + int(residual[node] + dur[node])
    return list(end.values())


def list_schedule(dfg: Dfg) -> tuple[list[int], list[int]]:
    """Order and ends by list scheduling; each iteration examines every node."""
    end: dict[int, int] = {}
    free = dict.fromkeys(range(LANES), -(10**9))
    while len(end) < dfg.nodes:
        open_nodes = [n for n in range(dfg.nodes) if n not in end and all(p in end for p, _ in predecessors(dfg, n))]
        when = {node: ready(dfg, node, end) for node in open_nodes}
        laneless = [node for node in open_nodes if dfg.lane[node] < 0]
        if laneless:
            node, begin = laneless[0], when[laneless[0]]
        else:
            turns = {int(dfg.lane[node]): 10**9 for node in open_nodes}
            for node in open_nodes:
                lane = int(dfg.lane[node])
                turns[lane] = min(turns[lane], max(when[node], free[lane]))
            lane = min(turns, key=lambda lane: (turns[lane], lane))
            begin = turns[lane]
            able = [node for node in open_nodes if dfg.lane[node] == lane and when[node] <= begin]
            node = min(able, key=lambda node: (dfg.recorded_ns[node], node))
            free[lane] = begin + int(dfg.residual_ns[node] + dfg.dur_ns[node])
        end[node] = begin + int(dfg.residual_ns[node] + dfg.dur_ns[node])
    return list(end), [end[node] for node in range(dfg.nodes)]
