"""Build the graph of one rank from its events and its collectives as matched across ranks."""

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from esprof.core.types import Rank
from esprof.replay.building.collectives import gloo
from esprof.replay.building.collectives.rendezvous import RankRendezvous
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.gpu import kernels, runtime_waits, streams
from esprof.replay.building.node_records import NextIds, in_lane_order, joined
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.threads import calls, cpu_threads, loader
from esprof.replay.building.threads.layout import Works
from esprof.replay.dfg import Edge, Lane
from esprof.replay.rules import Rules


@dataclass(frozen=True)
class RankGraph:
    """The graph of one rank. Lanes and nodes are numbered within it; times are on the rank's own clock."""

    rank: Rank
    lanes: tuple[Lane, ...]
    nodes: np.ndarray
    """Records of type `node_records.NODE`, sorted by lane."""
    edges: np.ndarray
    """Records of type `node_records.EDGE`, in any order."""
    texts: tuple[str, ...]
    """Texts of which the nodes' packed names are made."""
    first: np.ndarray
    """Node at which each of the rank's steps begins, shape (steps,)."""
    last: np.ndarray
    """Node at which each of the rank's steps ends, shape (steps,)."""
    counts: BuildCounts
    """Counts of this rank: kernels, launches and waits."""


class _Laned(Protocol):
    @property
    def lanes(self) -> tuple[Lane, ...]: ...

    @property
    def nodes(self) -> np.ndarray: ...


_Section = TypeVar("_Section", bound=_Laned)


@dataclass
class _Draft:
    """Lanes and nodes of a rank's graph under construction, section by section."""

    lanes: tuple[Lane, ...] = ()
    nodes: list[np.ndarray] = field(default_factory=list)

    @property
    def next_ids(self) -> NextIds:
        return NextIds(len(self.lanes), sum(map(len, self.nodes)))

    def add(self, work: _Section) -> _Section:
        """Append a section, whose lanes and nodes are numbered from `next_ids`, and return it."""
        self.lanes += work.lanes
        self.nodes.append(work.nodes)
        return work


@dataclass(frozen=True)
class _Work:
    """The work of a rank, and the causes of its waits."""

    on_gpu: kernels.GpuWork
    on_gloo: gloo.GlooWork
    loading: loader.LoaderWork
    runtime: runtime_waits.RuntimeCalls
    causes: runtime_waits.Causes
    hidden: runtime_waits.Causes
    launches: np.ndarray
    """Rows of the calls that launched work and did not wait."""
    launched: list[Works]
    """Collectives that each thread launched to gloo's threads, one entry per thread."""
    chains: cpu_threads.Chains
    unknown: loader.UnknownBatches


def rank_graph(events: RankEvents, rendezvous: RankRendezvous, rules: Rules) -> RankGraph:
    """The nodes and edges of one rank, independent of other ranks: may run in another thread or process."""
    draft = _Draft()
    work = _work(draft, events, rendezvous, rules)
    nodes = joined(draft.nodes)
    waits = streams.waits(work.on_gpu)
    edges = _edges(work, nodes, waits.held, rules)
    if not rules.syncs_by_time:
        edges = edges[edges["kind"] != Edge.BY_TIME]
    if rules.stream_waits and len(work.on_gpu):
        likely = waits.edges["kind"] == Edge.LIKELY_WAIT
        edges = joined([edges, waits.edges if rules.likely_waits else waits.edges[~likely]])
        edges = joined([edges, streams.late_kernels(work.on_gpu, nodes, edges)])
    first, last = cpu_threads.step_marks(events, work.chains)
    counts = _coverage(work) + BuildCounts(waits_rejected=waits.rejected)
    return RankGraph(events.rank, draft.lanes, nodes, edges, events.texts, first, last, counts)


def _work(draft: _Draft, events: RankEvents, rendezvous: RankRendezvous, rules: Rules) -> _Work:
    """Add the nodes of a rank to `draft`. GPU, gloo and loader are first, since the chains of threads depend on them."""
    on_gpu = draft.add(kernels.gpu_work(events, rendezvous, draft.next_ids, has_queue=rules.launch_queue))
    on_gloo = draft.add(gloo.gloo_work(events, rendezvous, draft.next_ids))
    loading = draft.add(loader.loader_work(events, draft.next_ids))
    runtime = runtime_waits.runtime_calls(on_gpu)
    causes, hidden = runtime_waits.causes(on_gpu, runtime), runtime_waits.hidden_causes(on_gpu, runtime)
    rows = calls.operations(on_gpu)
    calls.mark_collective_calls(rows, on_gloo)
    calls.mark_loads(rows, loading)
    launches = calls.mark_runtime_calls(rows, on_gpu, runtime, causes, hidden)
    launched = gloo.works_of(on_gloo, len(events.threads.roles))
    chains = draft.add(cpu_threads.chains(events, rows, launched, draft.next_ids))
    unknown = draft.add(loader.unknown_batches(events, loading, chains, draft.next_ids))
    return _Work(on_gpu, on_gloo, loading, runtime, causes, hidden, launches, launched, chains, unknown)


def _edges(work: _Work, nodes: np.ndarray, held: np.ndarray, rules: Rules) -> np.ndarray:
    """All edges within a rank except those between GPU streams; `held` marks GPU work that waited for an event."""
    chains = work.chains
    # Unknown batches, the last section of nodes, have their own edges.
    in_order = len(nodes) - len(work.unknown.nodes)
    return joined(
        [
            kernels.stream_order(work.on_gpu),
            in_lane_order(nodes["lane"][:in_order], len(work.on_gpu.nodes)),
            cpu_threads.hand_overs(work.on_gpu.events, chains),
            kernels.launches(work.on_gpu, chains, held, is_short=rules.launch_latency),
            runtime_waits.sync_edges(work.on_gpu, work.runtime, work.causes, chains),
            runtime_waits.hidden_edges(work.on_gpu, work.hidden, chains),
            runtime_waits.queue_edges(work.on_gpu, work.launches, chains),
            work.on_gloo.queue,
            gloo.launches(work.on_gloo, chains),
            gloo.returns(work.on_gloo, chains),
            gloo.awaited(work.on_gloo, work.launched, chains),
            loader.arrivals(work.loading, chains),
            loader.requests(work.loading, chains, nodes),
            work.unknown.edges,
        ]
    )


def _coverage(work: _Work) -> BuildCounts:
    """Counts of a rank's work and waits, and of those that could not be explained."""
    return (
        kernels.coverage(work.on_gpu)
        + runtime_waits.coverage(work.runtime, work.causes, work.chains)
        + cpu_threads.coverage(work.chains)
        + gloo.coverage(work.on_gloo)
    )
