"""A replayed graph: when each node runs, how long each step takes, and the critical path across ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from esprof.core import readable
from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.engine import longest_path

_CLASS_OF_LAG = {
    Edge.LANE: Cls.COMPUTE,
    Edge.LAUNCH: Cls.LAUNCH,
    Edge.WAIT: Cls.COMPUTE,
    Edge.LIKELY_WAIT: Cls.COMPUTE,
    Edge.SYNC: Cls.CPU,
    Edge.THREAD: Cls.CPU,
    Edge.RENDEZVOUS: Cls.COMMUNICATION,
    Edge.BY_TIME: Cls.CPU,
}
"""What the pause between a node and the one that it waited for counts as: a launch latency, a stream's own pause, the
time in which a thread wakes up."""

_AFTER_ALL_NS = 2**62
"""A moment after all others."""


@dataclass(frozen=True)
class Piece:
    """A stretch of the critical path. Pieces follow one another without gap or overlap."""

    start_ns: Ns
    end_ns: Ns
    node: int
    """Node that the path runs through here: at work, or waiting for its predecessor."""
    cls: Cls
    rank: Rank


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """When each node of `dfg` runs."""

    dfg: Dfg
    start_ns: np.ndarray
    """Start of each node, int64 ns since `dfg.t0_ns`."""
    end_ns: np.ndarray
    """End of each node, int64 ns since `dfg.t0_ns`."""

    def step_ns(self) -> np.ndarray:
        """Duration of each step of `dfg.marks`, ns: from when the last rank enters it to when the last rank leaves it."""
        marks = self.dfg.marks
        lengths: np.ndarray = self.end_ns[marks.last].max(axis=1) - self.end_ns[marks.first].max(axis=1)
        return lengths

    def gpu_progress_ns(self) -> np.ndarray:
        """Per step, how far the GPUs get on: by how much the end of all work launched so far grows, ns; 0 without a GPU."""
        dfg, marks = self.dfg, self.dfg.marks
        nodes = np.flatnonzero(dfg.on(LaneKind.STREAM) & np.isin(dfg.step, marks.steps))
        if not dfg.has_gpu():
            return np.zeros(len(marks.steps), np.int64)
        # The latest end of each step, behind where the first begins.
        latest = np.zeros(1 + len(marks.steps), np.int64)
        latest[0] = self.end_ns[marks.first[0]].max()
        np.maximum.at(latest, 1 + np.searchsorted(marks.steps, dfg.step[nodes]), self.end_ns[nodes])
        progress: np.ndarray = np.diff(np.maximum.accumulate(latest))
        return progress

    def communication_ns(self) -> np.ndarray:
        """Per step, the time in which the rank that communicates longest has communication in progress, ns."""
        dfg, marks = self.dfg, self.dfg.marks
        longest = np.zeros(len(marks.steps), np.int64)
        collectives = np.flatnonzero(dfg.of(Cls.COMMUNICATION) & np.isin(dfg.step, marks.steps))
        row = np.searchsorted(marks.steps, dfg.step[collectives])
        # Sorted by step and rank, so the communication of each pair is a slice.
        visit = row.astype(np.int64) * len(marks.ranks) + np.searchsorted(marks.ranks, dfg.rank[collectives])
        order = np.argsort(visit, kind="stable")
        boundaries = np.flatnonzero(np.diff(visit[order])) + 1
        for mine in np.split(order, boundaries) if len(order) else ():
            took = union_ns(self.start_ns[collectives[mine]], self.end_ns[collectives[mine]])
            longest[row[mine[0]]] = max(longest[row[mine[0]]], took)
        return longest


def replay(dfg: Dfg) -> Timeline:
    """When each node starts and ends, by one longest-path pass over the graph."""
    start, end = longest_path.run(dfg, dfg.dur_ns, dfg.residual_ns)
    return Timeline(dfg=dfg, start_ns=start, end_ns=end)


def strict(dfg: Dfg) -> Dfg:
    """The graph with its unexplained delays dropped: of the residuals only those by contention for the GPU stay."""
    return replace(dfg, residual_ns=np.where(dfg.contended, dfg.residual_ns, 0))


def union_ns(start_ns: np.ndarray, end_ns: np.ndarray) -> Ns:
    """Length of the union of intervals, ns."""
    return int(covered_ns(start_ns, end_ns, np.array([_AFTER_ALL_NS]))[0])


def covered_ns(begin: np.ndarray, end: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Total length of the union of the intervals from `begin` to `end` before each moment of `until`, ns, int64[moments]."""
    if not len(begin):
        return np.zeros(len(until), np.int64)
    order = np.argsort(begin)
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    # Sorted by begin, each interval adds its time after the latest end so far.
    total = np.cumsum(np.maximum(reach - np.maximum(begin, np.append(begin[:1], reach[:-1])), 0))
    last = np.searchsorted(begin, until, side="right") - 1
    covered: np.ndarray = np.where(last >= 0, total[last] - np.maximum(reach[last] - until, 0), 0)
    return covered


def is_covered(begin: np.ndarray, end: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Whether each moment (ns) lies in one of the intervals from `begin` to before `end`, bool[moments]."""
    inside: np.ndarray = covered_ns(begin, end, at + 1) > covered_ns(begin, end, at)
    return inside


def worked_ns(start_ns: np.ndarray, took_ns: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """How much of some pieces of work lies in each range from `begin_ns` to `end_ns`, ns, int64[ranges]. The pieces are
    ascending by start; a piece is over when the next one starts."""
    if not len(start_ns):
        return np.zeros(len(begin_ns), np.int64)
    before = np.append(0, np.cumsum(took_ns))

    def until(moment: np.ndarray) -> np.ndarray:
        at = np.maximum(np.searchsorted(start_ns, moment, side="right") - 1, 0)
        found: np.ndarray = before[at] + np.clip(moment - start_ns[at], 0, took_ns[at])
        return found

    within: np.ndarray = until(end_ns) - until(begin_ns)
    return within


def critical_path(timeline: Timeline, first: int, last: int) -> list[Piece]:
    """The critical path from the start of step `first` to the end of step `last` (indexes into `marks.steps`), in order.

    The path is a partition of that span: each instant belongs to one piece.
    """
    marks = timeline.dfg.marks
    begin = int(timeline.end_ns[marks.first[first]].max())
    node = int(marks.last[last][np.argmax(timeline.end_ns[marks.last[last]])])
    return path_back(timeline, node, begin)


def path_back(
    timeline: Timeline,
    node: int,
    begin: Ns,
    last_to_join: Callable[[Timeline, int], tuple[Timeline, int]] = lambda timeline, join: (timeline, join),
) -> list[Piece]:
    """The critical path from `begin`, ns since `dfg.t0_ns`, to the end of `node`, in order.

    It is found from the last end backwards, each time by the predecessor that let the node start last. The cursor never
    moves forward, so that clocks out of step cannot make the path longer than the span. Where a timeline holds one rank
    only, `last_to_join` gives the timeline of the rank that comes last to a join, and the join in it.
    """
    cursor = int(timeline.end_ns[node])
    pieces: list[Piece] = []

    def spend(until: Ns, cls: Cls, rank: Rank) -> None:
        nonlocal cursor
        until = max(until, begin)
        if until < cursor:
            pieces.append(Piece(until, cursor, node, cls, rank))
            cursor = until

    rank = int(timeline.dfg.rank[node])
    while cursor > begin:
        dfg = timeline.dfg
        # The join of a collective is on no rank: its piece counts for the rank that waited for it.
        rank = int(dfg.rank[node]) if dfg.rank[node] >= 0 else rank
        spend(int(timeline.start_ns[node]), Cls(dfg.cls[node]), rank)
        unexplained = Cls.CONTENTION if dfg.contended[node] else Cls.RESIDUAL
        spend(int(timeline.start_ns[node] - dfg.residual_ns[node]), unexplained, rank)
        if dfg.rank[node] < 0:
            timeline, node = last_to_join(timeline, node)
            dfg = timeline.dfg
        binding = binding_edge(timeline, node)
        if binding is None:
            # Nothing came before: this rank was late into the window.
            spend(begin, Cls.WAIT, rank)
            break
        source = int(dfg.pred_idx[binding])
        spend(int(timeline.end_ns[source]), _CLASS_OF_LAG[Edge(dfg.pred_kind[binding])], rank)
        node = source
    return pieces[::-1]


def steady_path(timeline: Timeline, steady_at: np.ndarray) -> list[Piece]:
    """The critical path over the steps at these positions of `marks.steps`, one path for each run of adjacent steps."""
    stretches = readable.stretches(steady_at.tolist())
    return [piece for steady in stretches for piece in critical_path(timeline, steady[0], steady[-1])]


def binding_edge(timeline: Timeline, node: int) -> int | None:
    """The edge that lets `node` start last, an index into `pred_idx`; None where it has no predecessor."""
    dfg = timeline.dfg
    edges = slice(int(dfg.pred_ptr[node]), int(dfg.pred_ptr[node + 1]))
    if edges.start == edges.stop:
        return None
    ready = timeline.end_ns[dfg.pred_idx[edges]] + dfg.pred_lag[edges]
    return edges.start + int(np.argmax(ready))


def class_totals(pieces: list[Piece]) -> dict[str, Ns]:
    """Time on the critical path by class; every class is named, the absent ones with 0."""
    totals = {cls.label: 0 for cls in Cls}
    for piece in pieces:
        totals[piece.cls.label] += piece.end_ns - piece.start_ns
    return totals


def rank_totals(pieces: list[Piece]) -> dict[Rank, Ns]:
    """Time on the critical path by rank."""
    totals: dict[Rank, Ns] = {}
    for piece in pieces:
        totals[piece.rank] = totals.get(piece.rank, 0) + piece.end_ns - piece.start_ns
    return totals
