"""The critical path of a job whose ranks are built one by one.

It leads back from a join to an earlier one within one rank, the one that came last to the join. Those stretches are found in
the skeleton of the job, and each rank on the path is built once for all of its stretches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import JOIN_LANE, StepMarks
from esprof.replay.engine.timeline import Piece, Timeline, binding_edge, path_back, replay
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.joined import JobSkeleton

LAST_STEP = -1
"""Stands for the end of a step, beside the numbers of collectives."""


@dataclass(frozen=True)
class RankWays:
    """A rank on the path, and where stretches of the path end in it."""

    rank: CalibratedRank
    ends: Sequence[int]
    """Numbers of the collectives at whose joins they end, or LAST_STEP."""
    last: int
    """Position of that step in `marks.steps`."""

    def timeline(self) -> Timeline:
        """`ways_back` from these ends in the replayed graph of the rank."""
        whole = self.rank.timeline(self.rank.graph())
        joins = joins_of(whole)
        last = int(whole.dfg.marks.last[self.last, 0])
        return ways_back(whole, [last if end == LAST_STEP else joins[end] for end in self.ends])


def joins_of(timeline: Timeline) -> dict[int, int]:
    """The join of each collective in the graph of a rank, by the number of the collective."""
    joins = np.flatnonzero(timeline.dfg.lane == JOIN_LANE)
    return dict(zip(timeline.dfg.collective[joins].tolist(), joins.tolist(), strict=True))


def ways_back(timeline: Timeline, ends: Sequence[int]) -> Timeline:
    """Of the replayed graph of a rank the step marks, and the nodes on the ways from `ends` back to the joins before them,
    each with the edge alone that lets it start last."""
    dfg, marks = timeline.dfg, timeline.dfg.marks
    kept = {*marks.first.ravel().tolist(), *marks.last.ravel().tolist()}
    edge_of: dict[int, int] = {}
    for end in ends:
        node = end
        while node not in edge_of:
            kept.add(node)
            binding = binding_edge(timeline, node) if node == end or dfg.lane[node] != JOIN_LANE else None
            if binding is None:
                break
            edge_of[node], node = binding, int(dfg.pred_idx[binding])
    nodes, bound = np.array(sorted(kept)), np.array(sorted(edge_of), np.int64)
    edges = np.array([edge_of[node] for node in bound.tolist()], np.int64)
    first, last = (np.searchsorted(nodes, some) for some in (marks.first, marks.last))
    part = replace(
        dfg,
        **{name: values[nodes] for name, values in dfg.columns.items()},
        pred_ptr=np.append(0, np.cumsum(np.isin(nodes, bound))).astype(dfg.pred_ptr.dtype),
        pred_idx=np.searchsorted(nodes, dfg.pred_idx[edges]).astype(dfg.pred_idx.dtype),
        pred_lag=dfg.pred_lag[edges],
        pred_kind=dfg.pred_kind[edges],
        marks=StepMarks(marks.steps, marks.ranks, first, last),
    )
    return Timeline(dfg=part, start_ns=timeline.start_ns[nodes], end_ns=timeline.end_ns[nodes])


class PathThroughRanks:
    """Finds the critical path of a job from the start of step `first` to the end of step `last`.

    `meetings` tells who came last to each join, and `skeleton`, that of the job as recorded, which ranks the path leads
    through, so that they can be built together. Of ways of equal length the skeleton may show another than the graphs of the
    ranks have; then a stretch is missing, and its rank is built again.
    """

    def __init__(
        self,
        meetings: JobSkeleton,
        skeleton: JobSkeleton,
        rank_of: Callable[[Rank], CalibratedRank],
        workers: RankWorkers,
        first: int,
        last: int,
    ) -> None:
        self.built: dict[Rank, Timeline] = {}
        """`ways_back` in the graph of each rank on the path."""
        self._meetings, self._met = meetings, replay(meetings.dfg)
        self._skeleton, self._recorded = skeleton, replay(skeleton.dfg)
        self._rank_of, self._workers = rank_of, workers
        self._wanted: dict[Rank, set[int]] = {}
        """Ends of stretches in each rank, as in `RankWays`."""
        marks, end_ns = meetings.dfg.marks, self._met.end_ns
        self._begin_ns = int(end_ns[marks.first[first]].max())
        self._slowest, self._last = int(np.argmax(end_ns[marks.last[last]])), last

    def pieces(self) -> list[Piece]:
        """The path; each piece's node is that of its rank's graph in `built`."""
        slowest = self._meetings.dfg.marks.ranks[self._slowest]
        self._want(slowest, LAST_STEP, int(self._skeleton.dfg.marks.last[self._last, self._slowest]))
        while True:
            timeline = self.built[slowest]
            try:
                end = int(timeline.dfg.marks.last[self._last, 0])
                return path_back(timeline, end, self._begin_ns, self._last_to_join)
            except _OtherWay as other:
                self._want(other.rank, other.number, int(self._skeleton.of_collectives(np.array(other.number))))

    def _last_to_join(self, waiting: Timeline, node: int) -> tuple[Timeline, int]:
        """The timeline of the rank that came last to a join, and the join in it."""
        number = int(waiting.dfg.collective[node])
        binding = binding_edge(self._met, int(self._meetings.of_collectives(np.array(number))))
        if binding is None:
            return waiting, node
        rank = self._meetings.dfg.marks.ranks[self._meetings.rank_at[binding]]
        if number not in self._wanted.get(rank, ()):
            raise _OtherWay(rank, number)
        return self.built[rank], joins_of(self.built[rank])[number]

    def _want(self, rank: Rank, end: int, node: int) -> None:
        """Build the ways back from this `end` in `rank`, and from all before it on the path from `node` of the skeleton."""
        found = {(rank, end), *self._stretches(node, end)}
        for on_path, number in found:
            self._wanted.setdefault(on_path, set()).add(number)
        ranks = sorted({on_path for on_path, _ in found})
        tasks = ((one, RankWays(self._rank_of(one), sorted(self._wanted[one]), self._last)) for one in ranks)
        made = self._workers.over("Following the critical path", RankWays.timeline, tasks)
        self.built.update(zip(ranks, made, strict=True))

    def _stretches(self, node: int, end: int | None) -> Iterator[tuple[Rank, int]]:
        """(rank, end) of each stretch of the path back from `node` of the skeleton, which is the `end` of the first."""
        dfg = self._skeleton.dfg
        while self._recorded.end_ns[node] > self._begin_ns:
            binding = binding_edge(self._recorded, node)
            if binding is None:
                return
            if end is not None:
                yield dfg.marks.ranks[self._skeleton.rank_at[binding]], end
            node = int(dfg.pred_idx[binding])
            end = int(dfg.collective[node]) if dfg.lane[node] == JOIN_LANE else None


class _OtherWay(Exception):
    """The path leads from the join of the collective `number` back through `rank`."""

    def __init__(self, rank: Rank, number: int) -> None:
        super().__init__(rank, number)
        self.rank, self.number = rank, number
