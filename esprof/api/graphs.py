"""The dataflow graph, the process groups and a hang as networkx graphs."""

from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from esprof.api.frames import start_ns
from esprof.core.errors import UsageError
from esprof.core.types import us
from esprof.replay.dfg import JOIN_LANE, Cls, Edge
from esprof.replay.engine.timeline import Timeline, binding_edge
from esprof.replay.replayed import Replayed
from esprof.run.flight.hang import wait_for_graph
from esprof.run.run import Run

MAX_GRAPH_NODES = 50_000
"""Maximum number of nodes of a networkx graph: a larger one takes minutes and gigabytes."""


def critical_path(replayed: Replayed, within: np.ndarray) -> nx.DiGraph:
    """The critical path through the steady-state steps, limited to the nodes in the mask `within`. An edge leads to each
    node from the predecessor that determined its start."""
    graph, timeline = nx.DiGraph(), replayed.timeline
    path = [piece for piece in replayed.path if within[piece.node]]
    for piece in path:
        _add_node(graph, timeline, piece.node)
    for before, after in pairwise(path):
        # Where steps between two segments were excluded, a new path begins.
        if before.node == after.node or before.end_ns != after.start_ns:
            continue
        target = after.node
        # Nodes of duration 0 have no segment of the path.
        while target != before.node and (edge := binding_edge(timeline, target)) is not None:
            source = int(timeline.dfg.pred_idx[edge])
            _add_node(graph, timeline, source)
            _add_edge(graph, timeline, source, target, edge)
            target = source
    return graph


def whole(replayed: Replayed, within: np.ndarray) -> nx.DiGraph:
    """All nodes in the mask `within`, with the edges between them. Raises UsageError if there are too many."""
    timeline, dfg = replayed.timeline, replayed.built.dfg
    nodes = np.flatnonzero(within)
    if len(nodes) > MAX_GRAPH_NODES:
        raise UsageError(
            f"this graph would have {len(nodes):,} nodes, more than the limit of {MAX_GRAPH_NODES:,} for networkx",
            remedy="Pass path_only=True or fewer steps (steps=[…]), or use timeline(), a table of all nodes.",
        )
    graph = nx.DiGraph()
    for node in nodes.tolist():
        _add_node(graph, timeline, node)
    for edge in np.flatnonzero(within[dfg.pred_target] & within[dfg.pred_idx]).tolist():
        _add_edge(graph, timeline, int(dfg.pred_idx[edge]), int(dfg.pred_target[edge]), edge)
    return graph


def process_groups(run: Run) -> nx.Graph:
    """Graph of ranks (ints) and process groups (names), with an edge from each rank to each of its groups."""
    graph = nx.Graph()
    known = {meta.rank: meta for meta in run.meta.ranks}
    for rank in range(run.world_size):
        meta = known.get(rank)
        graph.add_node(
            rank,
            kind="rank",
            host=meta.host if meta else None,
            device=meta.device if meta else None,
            recorded=rank in run.ranks,
        )
    for group in run.meta.groups:
        graph.add_node(group.name, kind="group", backend=group.backend, description=group.description)
        graph.add_edges_from((rank, group.name) for rank in group.ranks)
    return graph


def wait_for(run: Run) -> nx.DiGraph:
    """`wait_for_graph` with waiting times in microseconds, as in tables."""
    graph = wait_for_graph(run)
    for _, _, about in graph.edges(data=True):
        about["waited_us"] = us(about.pop("waited_ns"))
    return graph


def _add_node(graph: nx.DiGraph, timeline: Timeline, node: int) -> None:
    dfg = timeline.dfg
    lane = int(dfg.lane[node])
    about: dict[str, Any] = {
        "name": dfg.label(node),
        "class": Cls(dfg.cls[node]).label,
        "rank": int(dfg.rank[node]),
        "lane": "" if lane == JOIN_LANE else dfg.lanes[lane].role,
        "step": int(dfg.step[node]),
        "start_us": us(int(timeline.start_ns[node]) - start_ns(timeline)),
        "dur_us": us(int(dfg.dur_ns[node])),
    }
    graph.add_node(node, **about)


def _add_edge(graph: nx.DiGraph, timeline: Timeline, source: int, target: int, edge: int) -> None:
    kind, lag = Edge(timeline.dfg.pred_kind[edge]).name.lower(), int(timeline.dfg.pred_lag[edge])
    graph.add_edge(source, target, kind=kind, lag_us=us(lag))
