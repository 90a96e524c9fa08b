"""Replay a job by the skeletons of its ranks: each is built and contracted by itself, and only skeletons are kept.

Residuals come first. The delay of a node that nothing explains is what is left of its recorded start once its predecessors
have ended, and those may wait for other ranks. When the joins end, with all such delays, is a longest path as well: that of
nodes that start no earlier than they were recorded to. So a first skeleton gives the ends of joins, and a rank built again
with them has the residuals that it has in the graph of the whole job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.node_names import TEXTS, Text
from esprof.replay.dfg import JOIN_LANE, Cls, Dfg, LaneKind
from esprof.replay.engine import longest_path
from esprof.replay.engine.timeline import Piece, Timeline
from esprof.replay.over_ranks import IN_THIS_PROCESS, RankWorkers
from esprof.replay.skeleton.calibrated_rank import CalibratedJoins, CalibratedRank
from esprof.replay.skeleton.contract import Skeleton, contract
from esprof.replay.skeleton.joined import JobSkeleton, join
from esprof.replay.skeleton.ranks import RankAlone, RanksAlone, with_gpu_ends, with_times
from esprof.replay.skeleton.ways import PathThroughRanks
from esprof.replay.whatif.error.held_out import first_arrivals, fitted, places

_Made = TypeVar("_Made")
_Task = TypeVar("_Task")

_WARNED_OF = (TEXTS[Text.CUT_WORK], TEXTS[Text.GRAPH_WORK])
"""Names of nodes that a run's warnings count: they stay in the skeleton."""

_OTHER_THAN_TIMES = ("lane", "step", "cls", "name", "collective", "pred_ptr", "pred_idx", "pred_lag", "marks")
"""What two graphs of a rank have in common that are contracted alike, but for the times of nodes."""


@dataclass(frozen=True)
class _RankMeetings:
    """What is kept of a rank that was built to find out when all ranks meet. It has C collectives."""

    skeleton: Skeleton
    counts: BuildCounts
    own: int
    """Nodes of its graph without joins."""
    edges: int
    collectives: np.ndarray
    """Their numbers, int64[C]."""
    arrival_ns: np.ndarray
    """`held_out.first_arrivals` at each of them, since the epoch, int64[C]."""
    step: np.ndarray
    """Step of each of them, int64[C]."""


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
    def of(cls, ranks: RanksAlone, workers: RankWorkers = IN_THIS_PROCESS) -> "CalibratedJob":
        """Build and contract each rank, and find out when all met.

        Raises InputError as `build` does, RanksLost, and CyclesAcrossRanks."""
        tasks = ((rank, ranks.rank(rank)) for rank in ranks.steps.run.ranks)
        found = list(workers.over("Building the ranks", _meetings, tasks))
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

    def rank(self, rank: Rank) -> CalibratedRank:
        return self._calibrated[rank]

    @cached_property
    def _calibrated(self) -> dict[Rank, CalibratedRank]:
        fitted_residual_ns = fitted(self.meetings.dfg, self.ranks.steps.steady_at, self.place).residual_ns
        found = {}
        for alone in map(self.ranks.rank, self.ranks.steps.run.ranks):
            joins = self._joins(alone.collectives[np.isin(alone.collectives, self.meetings.collectives)])
            found[alone.recorded.rank] = CalibratedRank(
                alone=alone,
                joins=joins,
                steady_at=self.ranks.steps.steady_at,
                fitted_residual_ns=fitted_residual_ns[self.meetings.of_collectives(joins.collectives)],
                place=self.place[joins.collectives],
            )
        return found

    def timeline(self, ranks: Iterable[Rank]) -> Timeline:
        """The replay of the graph of these ranks together, with the times that they have in the job."""
        joins = self._joins(self.meetings.collectives)
        return joins.timeline(joins.calibrated(self.ranks.build(ranks)[0]))

    def _joins(self, collectives: np.ndarray) -> CalibratedJoins:
        """Those of these collectives, ascending numbers."""
        at = np.searchsorted(self.meetings.collectives, collectives)
        residual_ns = self.meetings.dfg.residual_ns[self.meetings.joins[at]]
        return CalibratedJoins(self.t0_ns, collectives, self.join_end_ns[at], residual_ns)

    def over_ranks(
        self, what: str, work: Callable[[CalibratedRank], _Made], workers: RankWorkers = IN_THIS_PROCESS
    ) -> Iterator[_Made]:
        """`work` of each rank, in order (`RankWorkers.over`)."""
        return workers.over(what, work, ((rank, self.rank(rank)) for rank in self.ranks.steps.run.ranks))

    def over_tasks(
        self,
        what: str,
        work: Callable[[tuple[CalibratedRank, _Task]], _Made],
        tasks: Iterable[tuple[Rank, _Task]],
        workers: RankWorkers = IN_THIS_PROCESS,
    ) -> Iterator[_Made]:
        """`over_ranks` of some ranks, each with a task of its own."""
        return workers.over(what, work, ((rank, (self.rank(rank), task)) for rank, task in tasks))

    def skeletons(
        self, variants: Callable[[CalibratedRank], Iterable[Dfg]], workers: RankWorkers = IN_THIS_PROCESS
    ) -> list[JobSkeleton]:
        """A skeleton of the job for each of the `variants` of each rank's graph, which differ in durations and residuals."""
        of_ranks = self.over_ranks("Contracting the ranks", partial(_contracted, variants), workers)
        return [join(of_variant) for of_variant in zip(*of_ranks, strict=True)]

    def path(
        self, skeleton: JobSkeleton, first: int, last: int, workers: RankWorkers = IN_THIS_PROCESS
    ) -> tuple[list[Piece], dict[Rank, Dfg]]:
        """The critical path of the job from the start of step `first` to the end of step `last`, as `critical_path` finds it
        in the whole graph; and the parts of the graphs of ranks that its nodes are in.

        `skeleton` is that of the job as recorded, which tells where the path leads through which rank."""
        ways = PathThroughRanks(self.meetings, skeleton, self.rank, workers, first, last)
        return ways.pieces(), {rank: one.dfg for rank, one in ways.built.items()}


def _meetings(rank: RankAlone) -> _RankMeetings:
    """What to keep of a rank's graph, whose nodes start no earlier than they were recorded to."""
    dfg, counts = rank.build()
    joins = dfg.lane == JOIN_LANE
    as_recorded = replace(dfg, residual_ns=np.zeros_like(dfg.residual_ns))
    # Communication between CPUs tells when it is worth knowing whether they work (`links.stretches`).
    cuts = joins | (dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION))
    skeleton = contract(as_recorded, cuts, no_earlier=True)
    arrival_ns, step = first_arrivals(replace(dfg, recorded_ns=dfg.recorded_ns + dfg.t0_ns))
    met = np.unique(dfg.collective[dfg.collective >= 0])
    return _RankMeetings(skeleton, counts, int((~joins).sum()), dfg.edges, met, arrival_ns[met], step[met])


def _contracted(variants: Callable[[CalibratedRank], Iterable[Dfg]], rank: CalibratedRank) -> list[Skeleton]:
    made = [*variants(rank)]
    contracts = ForAnswers.of(made[0])
    return [contracts.skeleton(one) for one in made]


def _places(ranks: Sequence[_RankMeetings]) -> np.ndarray:
    """`held_out.places` of the collectives of all ranks."""
    count = max(int(one.collectives.max(initial=-1)) + 1 for one in ranks)
    arrival, step = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    for one in ranks:
        arrival[one.collectives] = np.minimum(arrival[one.collectives], one.arrival_ns)
        step[one.collectives] = np.maximum(step[one.collectives], one.step)
    return places(arrival, step)


def _since(t0_ns: Ns, skeleton: Skeleton) -> Skeleton:
    """The skeleton with times since `t0_ns`, an earlier origin."""
    dfg = skeleton.dfg
    later = dfg.t0_ns - t0_ns
    recorded = dfg.recorded_ns + later
    recorded[0] = 0  # The origin.
    lag = dfg.pred_lag + np.where(dfg.pred_idx == 0, later, 0)
    return replace(skeleton, dfg=replace(dfg, t0_ns=t0_ns, recorded_ns=recorded, pred_lag=lag))


@dataclass(frozen=True)
class ForAnswers:
    """Contracts a rank's graph `dfg`, and others of the rank, to their communication and input data, which what-ifs change
    by what all ranks do, the ends of their GPU work, and the nodes that warnings count."""

    dfg: Dfg
    ends: Dfg
    """`with_gpu_ends` of it."""
    stays: np.ndarray
    """Mask of the nodes of `ends` that stay, bool[N]."""

    @classmethod
    def of(cls, dfg: Dfg) -> "ForAnswers":
        ends = with_gpu_ends(dfg)
        warned_of = [number for number, name in enumerate(dfg.names) if name in _WARNED_OF]
        stays = (ends.collective >= 0) | ends.of(Cls.COMMUNICATION, Cls.DATA, Cls.RESIDUAL)
        stays |= np.isin(ends.name, warned_of)
        stays[dfg.nodes :] = True
        return cls(dfg, ends, stays)

    def skeleton(self, dfg: Dfg) -> Skeleton:
        """The skeleton of another graph of the rank."""
        if any(getattr(dfg, name) is not getattr(self.dfg, name) for name in _OTHER_THAN_TIMES):
            return ForAnswers.of(dfg).skeleton(dfg)
        return contract(with_times(self.ends, dfg.dur_ns, dfg.residual_ns), self.stays)
