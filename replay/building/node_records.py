"""Nodes and edges under construction, as numpy records."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from esprof.core.types import Ns
from esprof.replay.dfg import Edge

NODE = np.dtype(
    [
        ("start_ns", np.int64),
        ("dur_ns", np.int64),
        ("name", np.int64),
        ("bytes", np.int64),
        ("lane", np.int32),
        ("step", np.int32),
        ("event", np.int32),
        ("collective", np.int32),
        ("cls", np.int8),
        ("contended", np.bool_),
        ("has_join_edge", np.bool_),
    ],
    align=True,
)
"""A node as in the Dfg, at its absolute recorded time in ns; its name is packed (`node_names.packed`).

`has_join_edge` marks an arrival at a collective that other ranks wait for, and a communication that waits for other ranks.
The nodes of a lane are contiguous, in the order in which the lane ran them."""

EDGE = np.dtype([("lag", np.int64), ("source", np.int32), ("target", np.int32), ("kind", np.int8)], align=True)
"""An edge: the node `target` starts no earlier than `lag` ns after the node `source` ends. Nodes are numbered within
their rank's graph; `kind` is an `Edge`."""


class NextIds(NamedTuple):
    """Numbers of the next lane and the next node of a rank's graph."""

    lane: int
    node: int


def nodes_of(count: int, **columns: object) -> np.ndarray:
    """`count` nodes (NODE) with these columns; by default without event, collective, bytes and step (-1)."""
    nodes = np.zeros(count, NODE)
    for column, value in ({"bytes": -1, "step": -1, "event": -1, "collective": -1} | columns).items():
        nodes[column] = value
    return nodes


def edges_of(source: np.ndarray, target: np.ndarray, kind: Edge | np.ndarray, lag: np.ndarray | Ns = 0) -> np.ndarray:
    """Edges (EDGE) from each entry of `source` to the same entry of `target`; lags in ns.

    Pairs with node -1, and pairs of equal nodes, are left out, so callers need not mask them.
    """
    edges = np.empty(len(source), EDGE)
    edges["source"], edges["target"], edges["kind"], edges["lag"] = source, target, kind, lag
    real = (edges["source"] >= 0) & (edges["target"] >= 0) & (edges["source"] != edges["target"])
    return np.compress(real, edges)


def in_lane_order(lane: np.ndarray, begin: int) -> np.ndarray:
    """Edges from each node, from `begin` on, to the next node on its lane; `lane` is the lane of each node.

    Nodes are sorted by lane.
    """
    target = begin + 1 + np.flatnonzero(lane[begin + 1 :] == lane[begin:-1])
    return edges_of(target - 1, target, Edge.LANE)


def joined(records: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays of nodes or of edges, as raw bytes: copying records field by field is twenty times as slow."""
    dtype = records[0].dtype
    raw = np.dtype((np.void, dtype.itemsize))
    return np.concatenate([some.view(raw) for some in records]).view(dtype)
