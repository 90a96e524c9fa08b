"""Nodes and edges under construction, as records: many columns that grow and are numbered together."""

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
their part; `kind` is an `Edge`."""


class NextIds(NamedTuple):
    """Where the next lane and the next node of a part will stand."""

    lane: int
    node: int


def nodes_of(count: int, **columns: object) -> np.ndarray:
    """`count` nodes (NODE) with these columns; of no event, collective or step unless a column says so."""
    nodes = np.zeros(count, NODE)
    for column, value in ({"bytes": -1, "step": -1, "event": -1, "collective": -1} | columns).items():
        nodes[column] = value
    return nodes


def edges_of(source: np.ndarray, target: np.ndarray, kind: Edge | np.ndarray, lag: np.ndarray | Ns = 0) -> np.ndarray:
    """Edges (EDGE) from each entry of `source` to that of `target`, lags in ns.

    A pair with a node that is -1, which is none, or with the same node twice gives no edge: callers need not mask those.
    """
    edges = np.empty(len(source), EDGE)
    edges["source"], edges["target"], edges["kind"], edges["lag"] = source, target, kind, lag
    real = (edges["source"] >= 0) & (edges["target"] >= 0) & (edges["source"] != edges["target"])
    return np.compress(real, edges)


def in_lane_order(lane: np.ndarray, begin: int) -> np.ndarray:
    """Edges from each node from `begin` on to the next on its lane; `lane` is that of each node of the part."""
    # Nodes stand lane by lane: the next on the lane is the next node, unless that one is on another lane.
    target = begin + 1 + np.flatnonzero(lane[begin + 1 :] == lane[begin:-1])
    return edges_of(target - 1, target, Edge.LANE)


def joined(records: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of nodes, or of edges, as one. As raw bytes: numpy copies records field by field, twenty times as slow."""
    dtype = records[0].dtype
    raw = np.dtype((np.void, dtype.itemsize))
    return np.concatenate([some.view(raw) for some in records]).view(dtype)
