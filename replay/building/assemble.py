"""Assemble the graphs of all ranks: joins between them, common numbers and names."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.lookup import common_numbers, numbered, occurrences, pairs
from esprof.replay.building.node_names import spelled
from esprof.replay.building.node_records import edges_of, joined, nodes_of
from esprof.replay.building.rank_graph import RankGraph
from esprof.replay.dfg import GUESSES, JOIN_LANE, Cls, Dfg, Edge, Lane, StepMarks
from esprof.replay.engine import topology
from esprof.replay.engine.longest_path import residuals
from esprof.run.clocks.by_collectives import Clocks


def assemble(
    graphs: Sequence[RankGraph], clocks: Clocks, arrival_ns: np.ndarray, steps: tuple[int, ...]
) -> tuple[Dfg, BuildCounts]:
    """Connect the graphs of the ranks at their collectives, on the clock of the job.

    `graphs` may be those of some ranks only: joins are of their collectives, and begin when all ranks have arrived
    (`Rendezvous.arrival_ns`). Returns the graph, and the counts of these ranks with those of dropped edges. Raises
    InputError on a cycle of certain edges.
    """
    nodes, edges, lanes, names = _pooled(graphs, clocks)
    joins, ties = _joins(nodes, arrival_ns, names)
    marks = StepMarks(
        steps=steps,
        ranks=tuple(graph.rank for graph in graphs),
        first=np.stack([base + graph.first for base, graph in zip(_bases(graphs), graphs, strict=True)], axis=1),
        last=np.stack([base + graph.last for base, graph in zip(_bases(graphs), graphs, strict=True)], axis=1),
    )
    nodes = joined([nodes, joins])
    in_order = topology.sort(nodes["start_ns"], joined([edges, ties]))
    dropped = BuildCounts(
        edges_dropped=len(in_order.dropped),
        guesses_dropped=int(np.isin(in_order.dropped, GUESSES).sum()),
        lags_clamped=in_order.clamped,
    )
    return graph_of(nodes, in_order, lanes, tuple(names), marks), sum((graph.counts for graph in graphs), dropped)


def _bases(graphs: Sequence[RankGraph]) -> list[int]:
    """Number of the first node of each rank."""
    return [0, *accumulate(len(graph.nodes) for graph in graphs)][:-1]


def _pooled(graphs: Sequence[RankGraph], clocks: Clocks) -> tuple[np.ndarray, np.ndarray, list[Lane], dict[str, int]]:
    """(nodes, edges, lanes, number of each name) of all ranks, numbered consecutively, on the job's clock.

    Names of nodes are numbers of names, no longer packed.
    """
    nodes, edges = (joined(column) for column in zip(*((graph.nodes, graph.edges) for graph in graphs), strict=True))
    lanes: list[Lane] = []
    names: dict[str, int] = {}
    begin = edge = 0
    for graph in graphs:
        mine = nodes[begin : begin + len(graph.nodes)]  # a view, so assignments change `nodes`
        start, end = mine["start_ns"], mine["start_ns"] + mine["dur_ns"]
        mine["dur_ns"] = clocks.apply(graph.rank, end) - clocks.apply(graph.rank, start)
        mine["start_ns"] = clocks.apply(graph.rank, start)
        mine["lane"] += len(lanes)
        codes, texts = spelled(mine["name"], graph.texts)
        mine["name"] = common_numbers(texts, names)[codes]
        edges[edge : edge + len(graph.edges)]["source"] += begin
        edges[edge : edge + len(graph.edges)]["target"] += begin
        lanes += graph.lanes
        begin, edge = begin + len(graph.nodes), edge + len(graph.edges)
    return nodes, edges, lanes, names


def _joins(nodes: np.ndarray, arrival_ns: np.ndarray, names: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(a join node for each matched collective of `nodes`, edges from arrivals to joins and from joins to communication)."""
    members = np.flatnonzero(nodes["collective"] >= 0)
    is_arrival = nodes["cls"][members] == Cls.WAIT
    numbers, which = np.unique(nodes["collective"][members], return_inverse=True)
    joins = nodes_of(len(numbers), start_ns=arrival_ns[numbers], lane=JOIN_LANE, cls=Cls.WAIT, collective=numbers)
    # With repeated indices numpy stores the last value; in reverse order that is the collective's first member.
    communications, of_join = members[~is_arrival][::-1], which[~is_arrival][::-1]
    joins["step"][of_join] = nodes["step"][communications]
    name = np.zeros(len(joins), np.int64)
    name[of_join] = nodes["name"][communications]
    spelling = list(names)
    kinds, distinct = numbered(name)
    joins["name"] = common_numbers((f"{spelling[code]} (join)" for code in distinct.tolist()), names)[kinds]
    # Joins follow all other nodes, in order of their collectives.
    join, has_edge = len(nodes) + which, nodes["has_join_edge"][members]
    source, target = np.where(is_arrival, members, join), np.where(is_arrival, join, members)
    return joins, edges_of(source[has_edge], target[has_edge], Edge.RENDEZVOUS)


def graph_of(
    nodes: np.ndarray, in_order: topology.Sorted, lanes: Sequence[Lane], names: Sequence[str], marks: StepMarks
) -> Dfg:
    """The graph of `nodes`, which are sorted by lane, and of their edges, both in the topological order `in_order`.

    Names of nodes are indices into `names`; node numbers in `marks` are positions in `nodes`.
    """
    order, before = in_order.order, in_order.predecessors
    key = keyed(nodes, lanes).of_node
    number = np.empty(len(order), np.int64)  # The inverse of `order`: the new number of each node.
    number[order] = np.arange(len(order))
    t0 = int(nodes["start_ns"].min())
    dur, recorded = nodes["dur_ns"][order], nodes["start_ns"][order] - t0
    return Dfg(
        t0_ns=t0,
        dur_ns=dur,
        recorded_ns=recorded,
        residual_ns=residuals(dur, recorded, before.ptr, before.idx, before.lag),
        contended=nodes["contended"][order],
        lane=nodes["lane"][order],
        step=nodes["step"][order],
        cls=nodes["cls"][order],
        name=nodes["name"][order].astype(np.int32),
        event=nodes["event"][order],
        collective=nodes["collective"][order],
        bytes=nodes["bytes"][order],
        key=key[order],
        pred_ptr=before.ptr,
        pred_idx=before.idx,
        pred_lag=before.lag,
        pred_kind=before.kind,
        names=tuple(names),
        lanes=tuple(lanes),
        marks=StepMarks(marks.steps, marks.ranks, number[marks.first], number[marks.last]),
    )


class Keys(NamedTuple):
    """Keys of N nodes (`Dfg.key`), of K kinds. A kind has as many keys, one after the other, as it has nodes in a step of a
    lane at most."""

    of_node: np.ndarray
    """int32[N], -1 without a lane."""
    role: np.ndarray
    """Lane role of each kind, an index into `roles`, int64[K]."""
    name: np.ndarray
    """int64[K]."""
    before: np.ndarray
    """Name of the previous neighbour, -1 without one, int64[K]."""
    most: np.ndarray
    """Number of keys of each kind, int32[K]."""
    roles: tuple[str, ...]

    def kinds(self) -> Iterator[tuple[str, int, int]]:
        """(lane role, name, previous neighbour) of each kind."""
        roles = (self.roles[role] for role in self.role.tolist())
        return zip(roles, self.name.tolist(), self.before.tolist(), strict=True)


def keyed(nodes: np.ndarray | Mapping[str, np.ndarray], lanes: Sequence[Lane]) -> Keys:
    """The keys of `nodes`, or of columns of them, which are sorted by lane.

    Gaps and waits are no neighbours, since they differ between ranks.
    """
    roles = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in lanes))}
    # JOIN_LANE is -1 and reads the last entry.
    role = np.array([*(roles[lane.role] for lane in lanes), len(roles)])[nodes["lane"]]
    name, at = nodes["name"], np.arange(len(nodes["name"]))
    is_neighbour = (nodes["cls"] != Cls.HOST_GAP) & (nodes["cls"] != Cls.WAIT)
    # The running maximum is the last neighbour up to each node; shifted by one, the last one before it.
    before = np.maximum.accumulate(np.where(is_neighbour, at, -1))
    before = np.append(-1, before[:-1])
    before = np.where((before >= 0) & (nodes["lane"][before] == nodes["lane"]), name[before], -1)
    identity, distinct = numbered(pairs(name * (len(roles) + 1) + role, before + 1))
    # Occurrences are counted within one lane and step: `visit` numbers these pairs.
    step = nodes["step"] - nodes["step"].min()
    visit = (nodes["lane"].astype(np.int64) - JOIN_LANE) * (step.max() + 1) + step
    by_visit = np.argsort(visit, kind="stable")
    occurrence = np.empty(len(name), np.int32)
    occurrence[by_visit], counts = occurrences(identity[by_visit], visit[by_visit], len(distinct))
    # Each `identity` gets a range of keys as long as its maximum number of occurrences in one visit.
    key = (np.cumsum(counts) - counts)[identity] + occurrence
    of_node = np.where(nodes["lane"] == JOIN_LANE, -1, key).astype(np.int32)
    what, neighbour = distinct >> 32, distinct & 0xFFFFFFFF
    return Keys(of_node, what % (len(roles) + 1), what // (len(roles) + 1), neighbour - 1, counts, (*roles, ""))
