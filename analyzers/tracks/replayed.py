"""Tracks of a replayed graph: one track per lane, and an arrow where a slice had to wait for one on another lane."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from esprof.analyzers.tracks.track import ArrowEnd, ArrowEnds, ArrowKind, Slices, Track, TrackProcess
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, Edge
from esprof.replay.engine.timeline import Timeline

_KINDS = {Edge.LAUNCH: ArrowKind.LAUNCH, Edge.RENDEZVOUS: ArrowKind.COLLECTIVE}
_CLASSES = tuple(cls.label for cls in Cls)


@dataclass(frozen=True)
class ReplayTracks:
    """A timeline as tracks, sorted by lane, so that those of a rank are found without a search through the graph."""

    title: str
    timeline: Timeline = field(repr=False)
    labels: Sequence[str]
    """Name of each lane, distinct within its rank."""
    lanes: Mapping[Rank, Sequence[int]]
    """The lanes of each rank."""
    nodes: np.ndarray
    """Ids of the drawn nodes, by lane and start."""
    first: np.ndarray
    """Index in `nodes` of the first node of each lane; one more entry than lanes."""
    arrow_node: np.ndarray
    """Index in `nodes` of each arrow end, ascending."""
    arrow_id: np.ndarray
    arrow_end: np.ndarray
    arrow_kind: np.ndarray
    """int8, an `Edge`."""

    @classmethod
    def of(cls, title: str, timeline: Timeline, steps: Sequence[int], first_id: int) -> "ReplayTracks":
        """The nodes with a duration that were launched in `steps`. Ids of arrows are `first_id` and the target's id."""
        dfg = timeline.dfg
        drawn = (dfg.dur_ns > 0) & (dfg.lane >= 0) & np.isin(dfg.step, steps)
        nodes = np.flatnonzero(drawn)
        nodes = nodes[np.lexsort((-timeline.end_ns[nodes], timeline.start_ns[nodes], dfg.lane[nodes]))]
        place = np.full(dfg.nodes, -1, np.int64)
        place[nodes] = np.arange(len(nodes))
        source, target, kind = arrows(timeline, drawn)
        at = np.concatenate([place[source], place[target]])
        order = np.argsort(at, kind="stable")
        return cls(
            title=title,
            timeline=timeline,
            labels=lane_labels(dfg),
            lanes=_lanes_by_rank(dfg),
            nodes=nodes,
            first=np.searchsorted(dfg.lane[nodes], np.arange(len(dfg.lanes) + 1)),
            arrow_node=at[order],
            arrow_id=(first_id + np.tile(target, 2))[order],
            arrow_end=np.repeat([ArrowEnd.SOURCE, ArrowEnd.TARGET], len(source))[order],
            arrow_kind=np.tile(kind, 2)[order],
        )

    def process(self, rank: Rank) -> TrackProcess:
        """The lanes of a rank that ran anything."""
        tracks = [self._track(lane) for lane in self.lanes[rank] if self.first[lane] < self.first[lane + 1]]
        return TrackProcess(f"rank {rank} {self.title}", "", recorded=False, tracks=tracks)

    def _track(self, lane: int) -> Track:
        dfg, timeline = self.timeline.dfg, self.timeline
        begin, end = self.first[lane : lane + 2]
        nodes = self.nodes[begin:end]
        moved = dfg.bytes[nodes].tolist()
        slices = Slices(
            start_ns=dfg.t0_ns + timeline.start_ns[nodes],
            end_ns=dfg.t0_ns + timeline.end_ns[nodes],
            name=dfg.name[nodes],
            names=dfg.names,
            category=dfg.cls[nodes],
            categories=_CLASSES,
            args={"step": dfg.step[nodes].tolist(), "bytes": [amount if amount >= 0 else None for amount in moved]},
        )
        mine = slice(*np.searchsorted(self.arrow_node, (begin, end)))
        ends = ArrowEnds(
            slice=self.arrow_node[mine] - begin,
            id=self.arrow_id[mine],
            end=self.arrow_end[mine],
            kind=[_KINDS.get(Edge(kind), ArrowKind.WAIT) for kind in self.arrow_kind[mine].tolist()],
        )
        return Track(self.labels[lane], slices, ends)


def lane_labels(dfg: Dfg) -> list[str]:
    """The role of each lane, with a number where a rank has several of that role: `comm`, `comm 2`."""
    seen: Counter[tuple[Rank, str]] = Counter()
    labels = []
    for lane in dfg.lanes:
        seen[lane.rank, lane.role] += 1
        number = seen[lane.rank, lane.role]
        labels.append(lane.role if number == 1 else f"{lane.role} {number}")
    return labels


def _lanes_by_rank(dfg: Dfg) -> dict[Rank, list[int]]:
    found: dict[Rank, list[int]] = {rank: [] for rank in dfg.marks.ranks}
    for number, lane in enumerate(dfg.lanes):
        found[lane.rank].append(number)
    return found


def arrows(timeline: Timeline, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(source, target, kind) of the arrows between `drawn` nodes (bool[N]): node ids, and an `Edge`.

    An arrow leads from the node that let another one start last, on another lane. Between them may be nodes that are not
    drawn, such as arrivals and joins; the kind is that of the first edge, seen from the target, that leaves a lane.
    """
    dfg = timeline.dfg
    before, kind = _last_predecessors(timeline)
    target = np.flatnonzero(drawn & (before >= 0))
    source, why = before[target], kind[target]
    while len(hidden := np.flatnonzero((source >= 0) & ~drawn[source])):
        at = source[hidden]
        why[hidden] = np.where(why[hidden] == Edge.LANE, kind[at], why[hidden])
        source[hidden] = before[at]
    crosses = (source >= 0) & (dfg.lane[source] != dfg.lane[target])
    return source[crosses], target[crosses], why[crosses]


def _last_predecessors(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """(int64[N] node that each node waited for last, -1 without any; int8[N] kind of the edge from it).

    A launch latency counts from the start of the call, so the edge comes from the node before the call: here it is the call.
    """
    dfg = timeline.dfg
    before, kind = np.full(dfg.nodes, -1, np.int64), np.full(dfg.nodes, Edge.LANE, np.int8)
    if dfg.edges:
        ready = timeline.end_ns[dfg.pred_idx] + dfg.pred_lag
        with_any = np.flatnonzero(np.diff(dfg.pred_ptr))
        latest = np.zeros(dfg.nodes, np.int64)
        latest[with_any] = np.maximum.reduceat(ready, dfg.pred_ptr[with_any])
        # With repeated indices numpy stores the last value; in reverse order that is the first of equal edges.
        binding = np.flatnonzero(ready == latest[dfg.pred_target])[::-1]
        before[dfg.pred_target[binding]] = dfg.pred_idx[binding]
        kind[dfg.pred_target[binding]] = dfg.pred_kind[binding]
        in_lane = np.flatnonzero(dfg.pred_kind == Edge.LANE)
        after = np.full(dfg.nodes, -1, np.int64)
        after[dfg.pred_idx[in_lane]] = dfg.pred_target[in_lane]
        launched = np.flatnonzero((kind == Edge.LAUNCH) & (after[before] >= 0))
        before[launched] = after[before[launched]]
    return before, kind
