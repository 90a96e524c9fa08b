"""Replay a job by the skeletons of its ranks: each is built and contracted by itself, and only skeletons are kept.

Residuals come first. The delay of a node that nothing explains is what is left of its recorded start once its predecessors
have ended, and those may wait for other ranks. When the joins end, with all such delays, is a longest path as well: that of
nodes that start no earlier than they were recorded to. So a first skeleton gives the ends of joins, and a rank built again
with them has the residuals that it has in the graph of the whole job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.node_names import TEXTS, Text
from esprof.replay.dfg import JOIN_LANE, Dfg
from esprof.replay.engine import longest_path
from esprof.replay.engine.timeline import Piece, Timeline, binding_edge, path_back, replay
from esprof.replay.skeleton.contract import Skeleton, contract
from esprof.replay.skeleton.joined import JobSkeleton, join
from esprof.replay.skeleton.ranks import RanksAlone, with_gpu_ends
from esprof.replay.whatif.error.held_out import first_arrivals, fitted, places

_Made = TypeVar("_Made")

_RANKS_IN_MEMORY = 32
"""Ranks whose whole graphs are kept while the critical path is followed, which passes from one to another and back."""

_WARNED_OF = (TEXTS[Text.CUT_WORK], TEXTS[Text.GRAPH_WORK])
"""Names of nodes that a run's warnings count: they stay in the skeleton."""


@dataclass(frozen=True)
class _RankMeetings:
    """What is kept of a rank that was built to find out when all ranks meet."""

    skeleton: Skeleton
    counts: BuildCounts
    own: int
    """Nodes of its graph without joins."""
    edges: int
    arrivals: tuple[np.ndarray, np.ndarray]
    """`held_out.first_arrivals` of its graph, the times since the epoch."""


@dataclass(frozen=True)
class CalibratedJob:
    """A job whose ranks can be built one by one, as they are in the graph of the whole job."""

    ranks: RanksAlone
    t0_ns: Ns
    meetings: JobSkeleton
    """Skeleton of the job with its joins, their residuals included."""
    join_end_ns: np.ndarray
    """End of each of `meetings.joins`, ns since `t0_ns`."""
    counts: BuildCounts
    nodes: int
    """Nodes of the graph of the whole job."""
    edges: int
    place: np.ndarray
    """Position of each collective among those of its step (`held_out.places`)."""

    @classmethod
    def of(cls, ranks: RanksAlone, executor: Executor | None = None) -> "CalibratedJob":
        """Build and contract each rank, and find out when all met. An `executor` of threads takes several ranks at a time.

        Raises InputError as `build` does, and CyclesAcrossRanks."""
        found = list(_map(executor, lambda rank: _meetings(*ranks.build(rank)), ranks.steps.run.ranks))
        t0_ns = min(one.skeleton.dfg.t0_ns for one in found)
        meetings = join([_since(t0_ns, one.skeleton) for one in found])
        dfg = meetings.dfg
        residual = longest_path.residuals(dfg.dur_ns, dfg.recorded_ns, dfg.pred_ptr, dfg.pred_idx, dfg.pred_lag)
        meetings = replace(meetings, dfg=replace(dfg, residual_ns=residual))
        return cls(
            ranks=ranks,
            t0_ns=t0_ns,
            meetings=meetings,
            join_end_ns=longest_path.ends(dfg, dfg.dur_ns, residual)[meetings.joins],
            counts=sum((one.counts for one in found), BuildCounts()),
            # Each rank has a node for the joins of its collectives, the job only one.
            nodes=sum(one.own for one in found) + len(meetings.joins),
            edges=sum(one.edges for one in found),
            place=_places(found),
        )

    def graph(self, rank: Rank) -> Dfg:
        """The graph of `rank` with the joins of its collectives; residuals are those of the whole job."""
        dfg = self.ranks.build(rank)[0]
        dfg = replace(dfg, t0_ns=self.t0_ns, recorded_ns=dfg.recorded_ns + dfg.t0_ns - self.t0_ns)
        joins, end_ns = self._joins(dfg)
        # That a join starts no earlier than all ranks have met has the effect of the ranks that the graph lacks.
        start = dfg.recorded_ns.copy()
        start[joins] = end_ns
        residual = longest_path.residuals(dfg.dur_ns, start, dfg.pred_ptr, dfg.pred_idx, dfg.pred_lag)
        residual[joins] = self.meetings.dfg.residual_ns[self.meetings.of_collectives(dfg.collective[joins])]
        return replace(dfg, residual_ns=residual)

    def fit(self, steady_at: np.ndarray) -> Callable[[Dfg], Dfg]:
        """What gives a rank's `graph` the durations of the first half of the steady-state steps (`held_out.fitted`)."""
        # The counterpart of a join may be a join of other ranks.
        of_job = fitted(self.meetings.dfg, steady_at, self.place).residual_ns

        def of_rank(dfg: Dfg) -> Dfg:
            mine, joins = fitted(dfg, steady_at, self.place), np.flatnonzero(dfg.lane == JOIN_LANE)
            residual = mine.residual_ns.copy()
            residual[joins] = of_job[self.meetings.of_collectives(dfg.collective[joins])]
            return replace(mine, residual_ns=residual)

        return of_rank

    def timeline(self, dfg: Dfg) -> Timeline:
        """The replay of a rank's `graph`."""
        joins, end_ns = self._joins(dfg)
        recorded, residual, of_join = dfg.recorded_ns.copy(), dfg.residual_ns.copy(), dfg.lane == JOIN_LANE
        recorded[joins], residual[joins] = end_ns, 0
        # A join without predecessors starts at its recorded start.
        kept = ~of_join[dfg.pred_target]
        alone = replace(
            dfg,
            recorded_ns=recorded,
            pred_ptr=np.append(0, np.cumsum(kept))[dfg.pred_ptr].astype(dfg.pred_ptr.dtype),
            pred_idx=dfg.pred_idx[kept],
            pred_lag=dfg.pred_lag[kept],
            pred_kind=dfg.pred_kind[kept],
        )
        start, end = longest_path.run(alone, dfg.dur_ns, residual)
        return Timeline(dfg=dfg, start_ns=start, end_ns=end)

    def skeletons(
        self, variants: Callable[[Dfg], Iterable[Dfg]], executor: Executor | None = None
    ) -> list[JobSkeleton]:
        """A skeleton of the job for each of the `variants` of each rank's graph, which differ in durations and residuals."""

        def contracted(rank: Rank) -> list[Skeleton]:
            return [_for_answers(one) for one in variants(self.graph(rank))]

        of_ranks = _map(executor, contracted, self.ranks.steps.run.ranks)
        return [join(of_variant) for of_variant in zip(*of_ranks, strict=True)]

    def path(self, first: int, last: int) -> list[Piece]:
        """The critical path of the job, as `critical_path` finds it in the whole graph; each piece's node is that of its
        rank's `graph`. Ranks are built again where the path passes through them."""
        met, whole = self.meetings, replay(self.meetings.dfg)
        marks, end_ns = met.dfg.marks, whole.end_ns
        by_rank = lru_cache(_RANKS_IN_MEMORY)(lambda rank: self.timeline(self.graph(rank)))

        def last_to_join(waiting: Timeline, node: int) -> tuple[Timeline, int]:
            """The timeline of the rank that came last to a join, and the join in it."""
            number = waiting.dfg.collective[node]
            binding = binding_edge(whole, int(met.of_collectives(number)))
            if binding is None:
                return waiting, node
            timeline = by_rank(marks.ranks[met.rank_at[binding]])
            return timeline, int(
                np.flatnonzero((timeline.dfg.lane == JOIN_LANE) & (timeline.dfg.collective == number))[0]
            )

        slowest = int(np.argmax(end_ns[marks.last[last]]))
        begin_ns = int(end_ns[marks.first[first]].max())
        timeline = by_rank(marks.ranks[slowest])
        return path_back(timeline, int(timeline.dfg.marks.last[last, 0]), begin_ns, last_to_join)

    def _joins(self, dfg: Dfg) -> tuple[np.ndarray, np.ndarray]:
        """(the joins of a rank's graph, their ends in the job, ns)."""
        joins = np.flatnonzero(dfg.lane == JOIN_LANE)
        return joins, self.join_end_ns[np.searchsorted(self.meetings.collectives, dfg.collective[joins])]


def _meetings(dfg: Dfg, counts: BuildCounts) -> _RankMeetings:
    """What to keep of a rank's graph, whose nodes start no earlier than they were recorded to."""
    joins = dfg.lane == JOIN_LANE
    as_recorded = replace(dfg, residual_ns=np.zeros_like(dfg.residual_ns))
    skeleton = contract(as_recorded, joins, no_earlier=True)
    met = first_arrivals(replace(dfg, recorded_ns=dfg.recorded_ns + dfg.t0_ns))
    return _RankMeetings(skeleton, counts, int((~joins).sum()), dfg.edges, met)


def _places(ranks: Sequence[_RankMeetings]) -> np.ndarray:
    """`held_out.places` of the collectives of all ranks."""
    count = max(len(step) for _, step in (one.arrivals for one in ranks))
    arrival, step = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    for first, of_rank in (one.arrivals for one in ranks):
        here = slice(len(of_rank))
        arrival[here], step[here] = np.minimum(arrival[here], first), np.maximum(step[here], of_rank)
    return places(arrival, step)


def _since(t0_ns: Ns, skeleton: Skeleton) -> Skeleton:
    """The skeleton with times since `t0_ns`, an earlier origin."""
    dfg = skeleton.dfg
    later = dfg.t0_ns - t0_ns
    recorded = dfg.recorded_ns + later
    recorded[0] = 0  # The origin.
    lag = dfg.pred_lag + np.where(dfg.pred_idx == 0, later, 0)
    return replace(skeleton, dfg=replace(dfg, t0_ns=t0_ns, recorded_ns=recorded, pred_lag=lag))


def _for_answers(dfg: Dfg) -> Skeleton:
    """The skeleton of a rank's graph with joins, the ends of its GPU work, and the nodes that warnings count."""
    ends = with_gpu_ends(dfg)
    warned_of = [number for number, name in enumerate(dfg.names) if name in _WARNED_OF]
    stays = (ends.lane == JOIN_LANE) | np.isin(ends.name, warned_of)
    stays[dfg.nodes :] = True
    return contract(ends, stays)


def _map(executor: Executor | None, work: Callable[[Rank], _Made], ranks: Iterable[Rank]) -> Iterator[_Made]:
    return executor.map(work, ranks) if executor else map(work, ranks)
