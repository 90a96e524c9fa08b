"""The part of the graph that one rank contributes, from its events and what is known of its collectives across ranks."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from esprof.replay import calls, cpu, gloo, gpu, loader, streams, waits
from esprof.replay.collectives import Met
from esprof.replay.dfg import Edge, Lane
from esprof.replay.rank_events import RankEvents
from esprof.replay.records import Place, in_lane_order, joined
from esprof.replay.rules import Rules
from esprof.types import Rank


@dataclass(frozen=True)
class Part:
    """What one rank contributes. Lanes are numbered within the part, times are on the rank's own clock."""

    rank: Rank
    lanes: tuple[Lane, ...]
    nodes: np.ndarray
    edges: np.ndarray
    texts: tuple[str, ...]
    """What the nodes' packed names are made of."""
    first: np.ndarray
    last: np.ndarray
    """Nodes at which the rank's steps begin and end, shape (steps,)."""
    counts: Counter[str]
    """What coverage reports."""


class _Laned(Protocol):
    @property
    def lanes(self) -> tuple[Lane, ...]: ...

    @property
    def nodes(self) -> np.ndarray: ...


_Work = TypeVar("_Work", bound=_Laned)


@dataclass
class _Draft:
    """Lanes and nodes of a part, as they come."""

    lanes: tuple[Lane, ...] = ()
    nodes: list[np.ndarray] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return Place(len(self.lanes), sum(map(len, self.nodes)))

    def add(self, work: _Work) -> _Work:
        self.lanes += work.lanes
        self.nodes.append(work.nodes)
        return work


def rank_part(events: RankEvents, met: Met, rules: Rules) -> Part:
    """The nodes and edges of one rank. Independent of all others: may run in another thread or process."""
    draft, counts = _Draft(), Counter[str]()
    on_gpu = draft.add(gpu.gpu_work(events, met, draft.place))
    on_gloo = draft.add(gloo.gloo_work(events, met, draft.place))
    loading = draft.add(loader.loader_work(events, draft.place))

    runtime = waits.runtime_calls(on_gpu)
    causes, hidden = waits.causes(on_gpu, runtime), waits.hidden_causes(on_gpu, runtime)
    rows = calls.operations(on_gpu)
    calls.mark_issues(rows, on_gloo)
    calls.mark_loads(rows, loading)
    launches = calls.mark_runtime_calls(rows, on_gpu, runtime, causes, hidden)
    works = gloo.works_of(on_gloo, len(events.threads.roles))
    chains = draft.add(cpu.chains(events, rows, works, draft.place))
    in_order = draft.place.node
    unknown = draft.add(loader.unknown_batches(events, loading, chains, draft.place))

    nodes = joined(draft.nodes)
    edges = joined(
        [
            gpu.stream_order(on_gpu),
            in_lane_order(nodes["lane"][:in_order], len(on_gpu.nodes)),
            cpu.hand_overs(events, chains),
            gpu.launches(on_gpu, chains),
            waits.sync_edges(on_gpu, causes, chains),
            waits.hidden_edges(on_gpu, hidden, chains),
            waits.queue_edges(on_gpu, launches, chains),
            gloo.issues(on_gloo, chains),
            gloo.returns(on_gloo, chains),
            gloo.awaited(on_gloo, works, chains),
            loader.arrivals(loading, chains),
            loader.requests(loading, chains, nodes),
            unknown.edges,
        ]
    )
    if not rules.inferred_syncs:
        edges = edges[edges["kind"] != Edge.INFERRED]
    if rules.stream_waits and len(on_gpu):
        edges = joined([edges, streams.stream_waits(on_gpu, counts)])
        edges = joined([edges, streams.late_kernels(on_gpu, nodes, edges)])
    first, last = cpu.step_marks(events, chains)
    for coverage in (
        gpu.coverage(on_gpu),
        waits.coverage(runtime, causes, chains),
        cpu.coverage(chains),
        gloo.coverage(on_gloo),
    ):
        counts.update(coverage)
    return Part(events.rank, draft.lanes, nodes, edges, events.texts, first, last, counts)
