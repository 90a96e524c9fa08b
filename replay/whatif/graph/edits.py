"""Edits of a graph, each a pure function from one graph to the next: what-ifs are made of them.

The primitives are those of Daydream (ATC 2020, §5) and Lumos (MLSys 2025, §3.4). `nodes` is a mask or ids.
"""

from dataclasses import replace as with_columns

import numpy as np

from esprof.core.types import Ns
from esprof.replay.dfg import Dfg, Edge
from esprof.replay.whatif.graph.overlay import Overlay


def scale(dfg: Dfg, nodes: np.ndarray, factor: float | np.ndarray) -> Dfg:
    """Make `nodes` `factor` times as fast: 2.0 halves their durations, 1.0 leaves the graph as it is.

    `factor` is one number for all, or one for each node of the graph, shape (N,).
    """
    if np.all(np.equal(factor, 1.0)):
        return dfg
    chosen = _mask(dfg, nodes)
    # A kernel that could not start for lack of room waits for the others' work: it scales with that.
    return with_columns(
        dfg,
        dur_ns=np.where(chosen, _divided(dfg.dur_ns, factor), dfg.dur_ns),
        residual_ns=np.where(chosen & dfg.contended, _divided(dfg.residual_ns, factor), dfg.residual_ns),
    )


def shorten(dfg: Dfg, nodes: np.ndarray, to_ns: Ns) -> Dfg:
    """Let `nodes` take at most `to_ns` (ns), and start without the delays that nothing explains."""
    chosen = _mask(dfg, nodes)
    return with_columns(
        dfg,
        dur_ns=np.where(chosen, np.minimum(dfg.dur_ns, to_ns), dfg.dur_ns),
        residual_ns=np.where(chosen, 0, dfg.residual_ns),
    )


def cut(dfg: Dfg, edges: np.ndarray) -> Dfg:
    """Take out `edges`, a mask (bool[E]): nobody waits for what they led from. A node keeps at least one edge of its own."""
    edge_offsets = np.append(0, np.cumsum(~edges))
    return with_columns(
        dfg,
        pred_ptr=edge_offsets[dfg.pred_ptr].astype(dfg.pred_ptr.dtype),
        pred_idx=dfg.pred_idx[~edges],
        pred_lag=dfg.pred_lag[~edges],
        pred_kind=dfg.pred_kind[~edges],
    )


def link(dfg: Dfg, source: np.ndarray, target: np.ndarray, lag_ns: np.ndarray, kind: Edge) -> Dfg:
    """Let each of the nodes `target` start no earlier than its `lag_ns` after its node `source` ends.

    Sources have smaller ids than their targets, which are distinct: nodes keep their ids.
    """
    among = [dfg.pred_idx[begin:end] for begin, end in zip(dfg.pred_ptr[target], dfg.pred_ptr[target + 1], strict=True)]
    within = [int(np.searchsorted(one, node, side="right")) for one, node in zip(among, source, strict=True)]
    at = dfg.pred_ptr[target] + np.array(within, np.int64)
    more = np.bincount(target + 1, minlength=len(dfg.pred_ptr))
    longest = np.iinfo(dfg.pred_lag.dtype).max
    return with_columns(
        dfg,
        pred_ptr=(dfg.pred_ptr + np.cumsum(more)).astype(dfg.pred_ptr.dtype),
        pred_idx=np.insert(dfg.pred_idx, at, source),
        pred_lag=np.insert(dfg.pred_lag, at, np.minimum(lag_ns, longest)),
        pred_kind=np.insert(dfg.pred_kind, at, kind),
    )


def replace(dfg: Dfg, nodes: np.ndarray, dur_ns: np.ndarray) -> Dfg:
    """Put other work in the place of `nodes` (ids), which takes `dur_ns` (ns): one value for each, or one for all."""
    dur = dfg.dur_ns.copy()
    dur[nodes] = dur_ns
    return with_columns(dfg, dur_ns=dur)


def on_separate_lanes(dfg: Dfg, group: np.ndarray) -> Dfg:
    """Move nodes to lanes of their own: of each lane those whose `group`, int[N], is the same, and not 0.

    On the old lane and on the new ones all keep their order, and neighbours close up.
    """
    moved = group > 0
    mixed = np.isin(dfg.lane, dfg.lane[moved])
    pairs, of_node = np.unique(np.stack([dfg.lane[moved], group[moved]]), axis=1, return_inverse=True)
    overlay = Overlay(with_columns(dfg, lanes=(*dfg.lanes, *(dfg.lanes[lane] for lane in pairs[0].tolist()))))
    among = (dfg.pred_kind == Edge.LANE) & mixed[dfg.pred_target]
    overlay.cut |= among & (group[dfg.pred_target] != group[dfg.pred_idx])
    for one in np.unique(group[mixed]).tolist():
        for source, target, lag, kind in _bridges(dfg, mixed & (group != one), among):
            overlay.link(source, target, kind, lag)
    overlay.lane[moved] = len(dfg.lanes) + of_node
    return overlay.compile()


def _mask(dfg: Dfg, nodes: np.ndarray) -> np.ndarray:
    chosen = np.zeros(dfg.nodes, bool)
    chosen[nodes] = True
    return chosen


def _divided(values: np.ndarray, factor: float | np.ndarray) -> np.ndarray:
    return np.rint(values / factor).astype(np.int64)


def _bridges(dfg: Dfg, dropped: np.ndarray, among: np.ndarray) -> list[tuple[int, int, Ns, Edge]]:
    """(source, target, lag in ns, kind) of edges that take the place of the paths through `dropped` nodes.

    `dropped` is a mask of nodes, `among` of the edges that count as paths. The lag of a path is the sum of its edges' lags,
    and of several paths between two nodes through the same last edge the longest counts.
    """
    # `reached` holds, for each dropped node, the nodes that stay from which a path leads to it, with the lag of that path.
    bridges: list[tuple[int, int, Ns, Edge]] = []
    reached: dict[int, dict[int, Ns]] = {}
    target = dfg.pred_target
    # Nodes stand in topological order: what a dropped node waits for is known before what waits for it.
    for edge in np.flatnonzero(among & (dropped[target] | dropped[dfg.pred_idx])).tolist():
        source, node, lag = int(dfg.pred_idx[edge]), int(target[edge]), int(dfg.pred_lag[edge])
        sources = {past: lag + more for past, more in reached.get(source, {}).items()}
        if not dropped[source]:
            sources = {source: lag}
        if dropped[node]:
            known = reached.setdefault(node, {})
            for past, length in sources.items():
                known[past] = max(length, known.get(past, length))
        else:
            bridges += [(past, node, length, Edge(dfg.pred_kind[edge])) for past, length in sources.items()]
    return bridges
