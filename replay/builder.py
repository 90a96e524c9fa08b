"""Collects nodes and edges in any order and compiles them into a Dfg."""

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from esprof.errors import InputError
from esprof.replay.dfg import Cls, Dfg, Edge, Lane, StepMarks
from esprof.replay.engine import residuals
from esprof.types import Bytes, Ns, Rank

_DOUBTFUL = ({Edge.INFERRED, Edge.WAIT}, {Edge.THREAD}, {Edge.RENDEZVOUS})
"""Kinds of edges by which a cycle is broken, the least certain first."""

JOIN_LANE = -1
"""Lane of the join of a collective, which belongs to no rank."""


@dataclass
class GraphBuilder:
    """A graph under construction. Node ids are given in order of creation; times are absolute ns until compiled."""

    start: list[Ns] = field(default_factory=list)
    dur: list[Ns] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    rank: list[Rank] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    cls: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    event: list[int] = field(default_factory=list)
    collective: list[int] = field(default_factory=list)
    bytes: list[Bytes] = field(default_factory=list)
    contended: set[int] = field(default_factory=set)
    edges: dict[tuple[int, int], tuple[Ns, Edge]] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    ends: list[list[Ns]] = field(default_factory=list)
    """Per lane, the recorded end of each of its nodes, in order."""
    members: list[list[int]] = field(default_factory=list)
    """Per lane, its nodes in order."""
    counts: Counter[str] = field(default_factory=Counter)
    """What coverage reports."""
    _names: dict[str, int] = field(default_factory=dict)

    def add_lane(self, rank: Rank, kind: str, role: str) -> int:
        self.lanes.append(Lane(rank, kind, role))
        self.ends.append([])
        self.members.append([])
        return len(self.lanes) - 1

    def add(
        self,
        lane: int,
        name: str,
        cls: Cls,
        start: Ns,
        dur: Ns,
        *,
        step: int = -1,
        event: int = -1,
        collective: int = -1,
        nbytes: Bytes = -1,
        chain: bool = True,
    ) -> int:
        """Add a node; `chain` ties it behind the last node of its lane. Returns its id."""
        node = len(self.start)
        self.start.append(start)
        self.dur.append(dur)
        self.lane.append(lane)
        self.rank.append(self.lanes[lane].rank if lane != JOIN_LANE else -1)
        self.step.append(step)
        self.cls.append(cls)
        self.name.append(self._names.setdefault(name, len(self._names)))
        self.event.append(event)
        self.collective.append(collective)
        self.bytes.append(nbytes)
        if lane != JOIN_LANE:
            if chain and self.members[lane]:
                self.link(self.members[lane][-1], node, Edge.LANE)
            self.members[lane].append(node)
            self.ends[lane].append(start + dur)
        return node

    def link(self, source: int, target: int, kind: Edge, lag: Ns = 0) -> None:
        """`target` starts no earlier than `lag` after `source` ends. The stricter of two edges between them stays."""
        known = self.edges.get((source, target))
        if source != target and (known is None or known[0] < lag):
            self.edges[source, target] = (lag, kind)

    def ending_by(self, lane: int, moment: Ns) -> int | None:
        """The last node of a CPU lane that ends at or before `moment`."""
        at = bisect_right(self.ends[lane], moment)
        return self.members[lane][at - 1] if at else None

    def compile(self, marks: StepMarks) -> Dfg:
        """Renumber topologically, measure the residuals, and freeze. Raises InputError on a cycle that is beyond doubt."""
        start = np.array(self.start, np.int64)
        t0 = int(start.min())
        order = self._topological(start)
        new_id = np.empty(len(order), np.int64)
        new_id[order] = np.arange(len(order))
        pairs = sorted((int(new_id[t]), int(new_id[s]), lag, kind) for (s, t), (lag, kind) in self.edges.items())
        columns = [np.array(column, np.int64) for column in zip(*pairs, strict=True)] or [np.zeros(0, np.int64)] * 4
        target, source, lag, kind = columns
        ptr = np.searchsorted(target, np.arange(len(order) + 1)).astype(np.int64)
        dur = np.array(self.dur, np.int64)[order]
        recorded = start[order] - t0
        # What has no predecessor starts when it was recorded to start: nothing here knows why.
        release = np.where(np.diff(ptr) == 0, recorded, 0)
        contended = np.zeros(len(order), bool)
        contended[new_id[list(self.contended)]] = True
        return Dfg(
            t0_ns=t0,
            dur_ns=dur,
            residual_ns=residuals(dur, recorded, release, ptr, source, lag),
            release_ns=release,
            recorded_ns=recorded,
            contended=contended,
            lane=np.array(self.lane, np.int32)[order],
            rank=np.array(self.rank, np.int32)[order],
            step=np.array(self.step, np.int32)[order],
            cls=np.array(self.cls, np.int8)[order],
            name=np.array(self.name, np.int32)[order],
            event=np.array(self.event, np.int64)[order],
            collective=np.array(self.collective, np.int32)[order],
            bytes=np.array(self.bytes, np.int64)[order],
            key=self._keys()[order],
            pred_ptr=ptr,
            pred_idx=source,
            pred_lag=lag,
            pred_kind=kind.astype(np.int8),
            names=tuple(self._names),
            lanes=tuple(self.lanes),
            marks=StepMarks(marks.steps, marks.ranks, new_id[marks.first], new_id[marks.last]),
        )

    def _topological(self, start: np.ndarray) -> np.ndarray:
        """Kahn's order, earliest recorded start first, ties by id; cycles are broken at their most doubtful edges."""
        followers: dict[int, list[int]] = defaultdict(list)
        missing = [0] * len(start)
        for source, target in self.edges:
            followers[source].append(target)
            missing[target] += 1
        starts = start.tolist()
        ready = [(starts[node], node) for node, count in enumerate(missing) if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, node = heapq.heappop(ready)
            order.append(node)
            for target in followers[node]:
                missing[target] -= 1
                if missing[target] == 0:
                    heapq.heappush(ready, (starts[target], target))
        if len(order) < len(starts):
            self._break_cycles()
            return self._topological(start)
        return np.array(order, np.int64)

    def _break_cycles(self) -> None:
        """Drop the most doubtful edges of each cycle: guesses first, then collectives that can only be matched wrongly."""
        pairs = np.array(list(self.edges), np.int64)
        ones, size = np.ones(len(pairs), np.int8), len(self.start)
        graph = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(size, size))
        component = connected_components(graph, directed=True, connection="strong")[1]
        in_cycle = pairs[component[pairs[:, 0]] == component[pairs[:, 1]]]
        for doubtful in _DOUBTFUL:
            dropped = [pair for s, t in in_cycle if self.edges[pair := (int(s), int(t))][1] in doubtful]
            for pair in dropped:
                del self.edges[pair]
            self.counts["edges_dropped"] += len(dropped)
            if dropped:
                return
        raise InputError("the recorded dependencies form a cycle", remedy="Are these traces of one run?")

    def _keys(self) -> np.ndarray:
        """One number a (lane role, name, neighbour before, occurrence in the step), the same on every rank."""
        known: dict[tuple[object, ...], int] = {}
        keys = np.full(len(self.start), -1, np.int64)
        for lane, nodes in enumerate(self.members):
            seen: Counter[tuple[object, ...]] = Counter()
            before = -1
            for node in nodes:
                what = (self.lanes[lane].role, self.name[node], before, self.step[node])
                keys[node] = known.setdefault((*what[:3], seen[what]), len(known))
                seen[what] += 1
                if self.cls[node] not in (Cls.HOST_GAP, Cls.WAIT):
                    # Gaps and waits come and go between ranks: they do not tell two operations apart.
                    before = self.name[node]
        return keys
