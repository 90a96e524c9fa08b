"""The DataLoader in the graph: a lane a worker, and the batch that each `next` of the rank waited for."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from esprof.replay import rules
from esprof.replay.builder import GraphBuilder
from esprof.replay.dfg import Cls, Edge
from esprof.replay.rank_events import RankEvents
from esprof.trace.schema import Table
from esprof.types import Ns


@dataclass(frozen=True)
class Batch:
    """Where a batch came from: the node that made it, and what receiving it costs the rank itself."""

    node: int
    own: Ns
    number: int = -1
    loader: int = -1


@dataclass(frozen=True)
class _Next:
    start: Ns
    end: Ns
    loader: int
    number: int
    worker: int
    ahead: int
    """Batches that the loader keeps in flight: workers x prefetch factor."""


@dataclass(frozen=True)
class _Fetch:
    start: Ns
    end: Ns
    pid: int
    worker: int


@dataclass
class LoaderWork:
    """The loader of one rank, from its `stages` table; without one, what each `next` waited for stays a guess."""

    events: RankEvents
    nexts: list[_Next]
    fetches: dict[tuple[int, int], _Fetch]
    own: Ns
    """What taking over a batch costs the rank, once it is there: median over the run."""
    nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    """(loader, batch) -> node that made it."""
    receipts: list[tuple[int, int, int]] = field(default_factory=list)
    """(loader, batch, node that took it over)."""
    unknown_lane: int | None = None

    def batch(self, builder: GraphBuilder, lane: int, start: Ns, end: Ns, name: str, step: int) -> Batch | None:
        """The batch that a `next` over [start, end] waited for; None where the rank itself made it."""
        call = self._call(start, end)
        if call is not None:
            node = self.nodes.get((call.loader, call.number))
            if node is not None:
                return Batch(node, self.own, call.number, call.loader)
        if "MultiProcessing" not in name or (call is not None and call.worker < 0):
            return None
        # A worker made it, and nothing tells when: it was ready when `next` returned, asked for at the latest by then.
        if self.unknown_lane is None:
            self.unknown_lane = builder.add_lane(self.events.rank, "loader", "loader (not recorded)")
        own = min(end - start, rules.BLOCKING_OWN)
        node = builder.add(
            self.unknown_lane, "batch (not recorded)", Cls.DATA, start, end - start - own, step=step, chain=False
        )
        if builder.members[lane]:
            builder.link(builder.members[lane][-1], node, Edge.THREAD)
        return Batch(node, own)

    def _call(self, start: Ns, end: Ns) -> _Next | None:
        at = bisect_left(self.nexts, start - rules.WAKE_UP, key=lambda call: call.start)
        near = self.nexts[at] if at < len(self.nexts) else None
        return near if near is not None and near.start < end else None

    def received(self, batch: Batch, node: int) -> None:
        """Remember that `node` took over `batch`: the loader then asks for a batch further ahead."""
        if batch.number >= 0:
            self.receipts.append((batch.loader, batch.number, node))


def add_loader(builder: GraphBuilder, events: RankEvents) -> LoaderWork:
    """Add the loader workers' batches of the window, each worker a lane."""
    nexts, fetches = _read_stages(events.stages, events.clock_shift)
    owns = []
    for call in nexts:
        fetch = fetches.get((call.loader, call.number))
        if fetch is not None and fetch.end <= call.end:
            owns.append(call.end - max(call.start, fetch.end))
    work = LoaderWork(events, nexts, fetches, int(median(owns)) if owns else rules.BLOCKING_OWN)
    asked = {(call.loader, call.number): call for call in nexts}
    lanes: dict[int, int] = {}
    for key, fetch in sorted(fetches.items(), key=lambda item: (item[1].start, item[0])):
        asking = asked.get(key)
        if fetch.end < events.begin or fetch.start > events.finish or (asking and asking.end < events.begin):
            continue
        if fetch.pid not in lanes:
            lanes[fetch.pid] = builder.add_lane(events.rank, "loader", f"loader worker {fetch.worker}")
        step = events.step_at(asking.end if asking else fetch.end)
        work.nodes[key] = builder.add(
            lanes[fetch.pid], "make batch", Cls.DATA, fetch.start, fetch.end - fetch.start, step=step
        )
    return work


def link_requests(builder: GraphBuilder, work: LoaderWork) -> None:
    """A worker makes batch n + ahead only after the rank has taken over batch n: the loader keeps no more in flight."""
    ahead = {call.loader: call.ahead for call in work.nexts}
    for loader, number, node in work.receipts:
        target = work.nodes.get((loader, number + ahead[loader]))
        if target is not None and builder.start[node] + builder.dur[node] <= builder.start[target] + rules.WAKE_UP:
            lag = min(0, builder.start[target] - builder.start[node] - builder.dur[node])
            builder.link(node, target, Edge.THREAD, lag)


def _read_stages(stages: Table, shift: Ns) -> tuple[list[_Next], dict[tuple[int, int], _Fetch]]:
    what = stages.texts("what")
    columns = ("start_ns", "end_ns", "loader", "batch", "worker", "pid", "workers", "prefetch")
    nexts, by_batch = [], defaultdict(list)
    rows = zip(what, *(stages.ints(column).tolist() for column in columns), strict=True)
    for kind, start, end, loader, batch, worker, pid, workers, prefetch in rows:
        if kind == "next":
            ahead = max(workers, 0) * max(prefetch, 1)
            nexts.append(_Next(start + shift, end + shift, loader, batch, worker, ahead))
        elif kind == "fetch" and batch >= 0:
            by_batch[loader, batch].append(_Fetch(start + shift, end + shift, pid, worker))
    return sorted(nexts, key=lambda call: call.start), {key: fetches[-1] for key, fetches in by_batch.items()}
