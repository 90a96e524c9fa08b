"""The DataLoader in the graph: one lane per worker, and the batch that each `next` of the rank waited for."""

from dataclasses import dataclass

import numpy as np

from esprof.core.types import Ns
from esprof.replay import rules
from esprof.replay.building.lookup import entries, numbered, pairs, position
from esprof.replay.building.node_names import Text, plain
from esprof.replay.building.node_records import NextIds, edges_of, joined, nodes_of
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.threads.cpu_threads import Chains
from esprof.replay.dfg import UNSEEN_LOADER, Cls, Edge, Lane, LaneKind
from esprof.run.schema import StageKind, Table


@dataclass(frozen=True)
class LoaderWork:
    """The loader of one rank: the batches that its workers made, and the source of the batch of each `next`.

    Without a `stages` table, the batch that a `next` waited for is inferred.
    """

    lanes: tuple[Lane, ...]
    nodes: np.ndarray
    row: np.ndarray
    """Row of each `next` of the rank in the event table."""
    source: np.ndarray
    """Node that made the batch of each `next`; -1 where that was not recorded."""
    by_worker: np.ndarray
    """bool: a worker, not the rank itself, made the batch of each `next`."""
    own_ns: np.ndarray
    """Time that the rank takes to receive the batch of each `next`, ns."""
    asks_for: np.ndarray
    """Node of the batch that the loader requests after receiving the batch of each `next`; -1 where there is none."""


@dataclass(frozen=True)
class _Stages:
    """Rows of one kind of the `stages` table, sorted by start."""

    start: np.ndarray
    end: np.ndarray
    loader: np.ndarray
    batch: np.ndarray
    worker: np.ndarray
    pid: np.ndarray
    ahead: np.ndarray
    """Number of batches that the loader keeps in flight: workers x prefetch factor."""

    def key(self, ahead: np.ndarray | int = 0) -> np.ndarray:
        """Key of the batch `ahead` batches later of the same loader; negative where the batch has no number."""
        return np.where(self.batch >= 0, pairs(self.loader, self.batch + ahead), -1)

    def where(self, rows: np.ndarray) -> "_Stages":
        return _Stages(*(column[rows] for column in vars(self).values()))


def loader_work(events: RankEvents, next_ids: NextIds) -> LoaderWork:
    """The loader of a rank; lanes and nodes are numbered from `next_ids`."""
    nexts, fetches = _stages(events.stages, "next"), _stages(events.stages, "fetch")
    made, step = _in_window(events, nexts, fetches)
    lane, pids = numbered(made.pid)
    # Batches are sorted by worker, and workers numbered in the same order, so this finds the first batch of each.
    first = np.searchsorted(lane, np.arange(len(pids)))
    row = events.threads.row[events.of_kind(events.threads.row, "loader")]
    dur = np.minimum(events.end[row], events.finish) - events.start[row]
    call = _calls(nexts, events.start[row], dur)
    source = entries(_nodes(made, nexts.key(), next_ids.node), call, -1)
    in_rank = ~events.by_name(row, lambda name: "MultiProcessing" in name) | (entries(nexts.worker, call, 0) < 0)
    return LoaderWork(
        lanes=tuple(
            Lane(events.rank, LaneKind.LOADER, f"loader worker {worker}") for worker in made.worker[first].tolist()
        ),
        nodes=nodes_of(
            len(made.start),
            start_ns=made.start,
            dur_ns=made.end - made.start,
            name=plain(Text.BATCH),
            lane=next_ids.lane + lane,
            step=step,
            cls=Cls.DATA,
        ),
        row=row,
        source=source,
        by_worker=(source >= 0) | ~in_rank,
        own_ns=np.minimum(dur, np.where(source >= 0, _own(nexts, fetches), rules.MAX_BLOCKING_OWN)),
        asks_for=entries(_nodes(made, nexts.key(nexts.ahead), next_ids.node), call, -1),
    )


def _stages(stages: Table, kind: StageKind) -> _Stages:
    start = stages.ints("start_ns")
    rows = np.flatnonzero(stages.is_kind(kind))
    rows = rows[np.argsort(start[rows], kind="stable")]
    columns = ("end_ns", "loader", "batch", "worker", "pid", "workers", "prefetch")
    end, loader, batch, worker, pid, workers, prefetch = (stages.ints(column)[rows] for column in columns)
    return _Stages(start[rows], end, loader, batch, worker, pid, np.maximum(workers, 0) * np.maximum(prefetch, 1))


def _in_window(events: RankEvents, nexts: _Stages, fetches: _Stages) -> tuple[_Stages, np.ndarray]:
    """(batches made or received in the window, sorted by worker; step in which each was received).

    If a batch was fetched repeatedly, the last attempt counts.
    """
    key = fetches.key()
    # `position` finds the last occurrence of a key; an entry that is its own last occurrence is the last attempt.
    asked = position(nexts.key(), key)
    taken = np.where(asked >= 0, entries(nexts.end, asked, 0), fetches.end)
    last_try = (key >= 0) & (position(key, key) == np.arange(len(key)))
    inside = np.flatnonzero(
        last_try & (fetches.end >= events.begin) & (fetches.start <= events.finish) & (taken >= events.begin)
    )
    inside = inside[np.argsort(numbered(fetches.pid[inside])[0], kind="stable")]
    return fetches.where(inside), events.step_at(taken[inside])


def _calls(nexts: _Stages, start: np.ndarray, dur: np.ndarray) -> np.ndarray:
    """The recorded `next` of each row, an index into `nexts`; -1 where there is none. `start` and `dur` are in ns."""
    # The first `next` that starts at most MAX_WAKE_UP before the row, provided that it starts before the row ends.
    at = np.searchsorted(nexts.start, start - rules.MAX_WAKE_UP)
    at = np.where(at < len(nexts.start), at, -1)
    return np.where((at >= 0) & (entries(nexts.start, at, 0) < start + dur), at, -1)


def _nodes(made: _Stages, wanted: np.ndarray, base: int) -> np.ndarray:
    """Nodes of the batches with the keys `wanted`, -1 where there is none; nodes of `made` are numbered from `base`."""
    at = position(made.key(), wanted)
    return np.where(at >= 0, base + at, -1)


def _own(nexts: _Stages, fetches: _Stages) -> Ns:
    """Time to receive a batch that is ready, ns: median over the run."""
    at = position(fetches.key(), nexts.key())
    ready = entries(fetches.end, at, 0)
    known = (at >= 0) & (ready <= nexts.end)
    cost = (nexts.end - np.maximum(nexts.start, ready))[known]
    return int(np.median(cost)) if len(cost) else rules.MAX_BLOCKING_OWN


def arrivals(loader: LoaderWork, chains: Chains) -> np.ndarray:
    """Edges from the making of batches to the `next` that receives them."""
    return edges_of(loader.source, chains.node_of[loader.row], Edge.SYNC)


def requests(loader: LoaderWork, chains: Chains, nodes: np.ndarray) -> np.ndarray:
    """Edges from receiving a batch to the making of the batch that the loader then requests."""
    source, target = chains.node_of[loader.row], loader.asks_for
    # Index -1 reads arbitrary times here; `edges_of` drops those edges.
    taken = nodes["start_ns"][source] + nodes["dur_ns"][source]
    later = taken <= nodes["start_ns"][target] + rules.MAX_WAKE_UP
    lag = np.minimum(nodes["start_ns"][target] - taken, 0)
    return edges_of(source[later], target[later], Edge.THREAD, lag[later])


@dataclass(frozen=True)
class UnknownBatches:
    """Batches for which only the wait was recorded, on a separate lane."""

    lanes: tuple[Lane, ...]
    nodes: np.ndarray
    edges: np.ndarray


def unknown_batches(events: RankEvents, loader: LoaderWork, chains: Chains, next_ids: NextIds) -> UnknownBatches:
    """Batches that workers made at an unknown time; each is assumed to last from the call of `next` until it is received."""
    mine = (loader.source < 0) & loader.by_worker & (chains.node_of[loader.row] >= 0)
    start, receiving = events.start[loader.row[mine]], chains.node_of[loader.row[mine]]
    dur = np.minimum(events.end[loader.row[mine]], events.finish) - start - loader.own_ns[mine]
    nodes = nodes_of(
        len(start),
        start_ns=start,
        dur_ns=dur,
        name=plain(Text.UNKNOWN_BATCH),
        lane=next_ids.lane,
        step=events.step_at(start),
        cls=Cls.DATA,
    )
    number = next_ids.node + np.arange(len(nodes))
    asked, given = edges_of(chains.before(receiving), number, Edge.THREAD), edges_of(number, receiving, Edge.SYNC)
    lanes = (Lane(events.rank, LaneKind.LOADER, UNSEEN_LOADER),) if len(nodes) else ()
    return UnknownBatches(lanes, nodes, joined([asked, given]))
