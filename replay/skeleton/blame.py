"""Slow ranks of a run whose ranks are built one by one: their work is compared without edges, and replayed by skeletons.

The nodes of all ranks stay in little memory (`JobNodes`). They are compared some ranks at a time, with what a table of the
work of all ranks says of their counterparts (`PeerTable`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import JOIN_LANE, Cls, Dfg, LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.ranks.arrivals import held_ns
from esprof.replay.ranks.blame import Blame, NewDurations, Sums
from esprof.replay.ranks.counterparts import Counterparts, PeerTable, RankWork, passes_messages, roles_by_compute
from esprof.replay.ranks.narrow import narrow
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.contract import Skeleton, contract
from esprof.replay.skeleton.job import CalibratedJob
from esprof.replay.skeleton.joined import JobSkeleton, join
from esprof.replay.skeleton.nodes import JobNodes, nodes_of_rank, own_nodes
from esprof.replay.skeleton.ranks import with_ends, with_times

_LONG_NS = 2**62
"""Longer than any run."""


class _ComparedWork(NamedTuple):
    """Durations of a rank's own nodes (`own_nodes`), ns."""

    usual_ns: np.ndarray
    own_ns: np.ndarray | None
    """As the rank does them, where it may be slow."""


class _Replayed(NamedTuple):
    """Growth of the end of all work launched so far, ns, int64[steps]."""

    recorded: np.ndarray
    alike: np.ndarray
    """Where the work of all ranks is usual."""
    alone: np.ndarray
    """Where that of all but one is, int64[steps, suspects]."""


@dataclass(frozen=True, kw_only=True)
class SkeletonBlame(Blame):
    """`Blame` of a job. Its `dfg` has only the nodes of `may_be_held`, and no edges; all nodes are in its `parts`."""

    job: CalibratedJob
    nodes: JobNodes
    workers: RankWorkers

    @classmethod
    def of_job(cls, job: CalibratedJob, steps: tuple[int, ...], workers: RankWorkers) -> "SkeletonBlame":
        """Read the nodes of all ranks. Raises RanksLost, as all else does that builds ranks."""
        nodes = JobNodes.of(job.over_ranks("Reading the work of ranks", nodes_of_rank, workers))
        return cls(nodes.held(), steps, job=job, nodes=nodes, workers=workers)

    def parts(self) -> "Iterator[PartBlame]":
        return (self._part((at,)) for at in range(len(self.nodes.columns)))

    def of_ranks(self, ranks: Collection[Rank]) -> "PartBlame":
        return self._part(self.nodes.at(ranks or self.dfg.marks.ranks[:1]))

    def _part(self, at: tuple[int, ...]) -> "PartBlame":
        return PartBlame(self.nodes.dfg(at), self.steps, self.gaps_wait, of_job=self, at=at)

    def changed(self, changes: Iterable[NewDurations]) -> "SkeletonBlame":
        dur_ns: dict[int, np.ndarray] = {}
        for change in changes:
            assert isinstance(change.of, SkeletonBlame | PartBlame)
            column = np.searchsorted(self.dfg.marks.ranks, change.of.dfg.rank[change.nodes])
            own = change.of.own[change.nodes]
            for at in np.unique(column).tolist():
                dur = dur_ns.get(at, self.nodes.columns[at]["dur_ns"]).astype(np.int64)
                dur[own[column == at]] = change.dur_ns[column == at]
                dur_ns[at] = narrow(dur)
        nodes = self.nodes.with_durations(dur_ns)
        return replace(self, dfg=nodes.held(), nodes=nodes)

    @cached_property
    def own(self) -> np.ndarray:
        """Position of each node among those of its rank, int64[N]."""
        return np.concatenate([held.astype(np.int64) for held in self.nodes.held_at])

    @cached_property
    def roles(self) -> np.ndarray:
        if not passes_messages(self.dfg):
            return np.zeros(len(self.dfg.marks.ranks), np.int64)
        of_ranks = ((mine["key"].astype(np.int32), mine["cls"] == Cls.COMPUTE) for mine in self.nodes.columns)
        return roles_by_compute(key[is_compute] for key, is_compute in of_ranks)

    @cached_property
    def held_ns(self) -> np.ndarray:
        """Time that each node waits for other ranks inside calls, ns, int64[N]."""
        return held_ns(self.dfg, self.dfg.marks.ranks)

    @cached_property
    def held_from(self) -> np.ndarray:
        """Where the nodes of each rank begin, and where the last ones end, int64[ranks + 1]."""
        return np.array([*accumulate((len(held) for held in self.nodes.held_at), initial=0)])

    @cached_property
    def table(self) -> PeerTable:
        """What the work of each rank is compared with."""
        return PeerTable.of(part.work for part in self.parts())

    @cached_property
    def sums(self) -> Sums:
        return self._summed_up[0]

    @cached_property
    def _summed_up(self) -> tuple[Sums, list[np.ndarray]]:
        """(sums over all ranks, what the nodes of each usually take, in whole ns)."""
        sums: Sums | None = None
        usual: list[np.ndarray] = []
        for part in self.parts():
            sums = part.sums if sums is None else Sums(*map(np.add, sums, part.sums))
            usual += (narrow(of_rank) for of_rank in part.by_rank(np.rint(part.usual_ns).astype(np.int64)))
        assert sums is not None, "a job has ranks"
        return sums, usual

    @cached_property
    def step_ns(self) -> float:
        return float(self._replayed.recorded.mean())

    def _progress_alone_ns(self, suspects: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return self._replayed.alike, self._replayed.alone

    @cached_property
    def _replayed(self) -> _Replayed:
        suspects = self._suspects()
        work = (
            (rank, _ComparedWork(usual, narrow(self._own_ns(at)) if at in suspects else None))
            for at, (rank, usual) in enumerate(zip(self.dfg.marks.ranks, self._summed_up[1], strict=True))
        )
        found = list(self.job.over_tasks("Comparing ranks", _skeletons, work, self.workers))
        recorded = join([one[0] for one in found])
        # Suspects are in this one twice: among all ranks with usual work, and behind them with their own.
        job = join([one[1] for one in found] + [found[at][2] for at in suspects])
        usual = np.arange(len(found))
        alone = [
            self._progress_of(job, np.append(np.delete(usual, at), len(found) + number))
            for number, at in enumerate(suspects)
        ]
        return _Replayed(
            self._progress_of(recorded, usual),
            self._progress_of(job, usual),
            np.array(alone, np.int64).reshape(len(suspects), len(self.steps)).T,
        )

    def _own_ns(self, at: int) -> np.ndarray:
        """What the nodes of the rank at this position take, ns, int64[N]."""
        part = self._part((at,))
        own: np.ndarray = np.rint(part.usual_ns).astype(np.int64) + np.rint(part.excess_ns).astype(np.int64)
        return own

    def _progress_of(self, job: JobSkeleton, ranks: np.ndarray) -> np.ndarray:
        """Growth of the end of all work in each of `steps`, ns, int64[steps], where it is at the ends of steps. Joins wait
        only for the `ranks` at these positions of the job."""
        dfg, marks = job.dfg, job.dfg.marks
        waits = np.isin(job.rank_at, ranks) | (dfg.lane != JOIN_LANE)[dfg.pred_target]
        end = replay(replace(dfg, pred_lag=np.where(waits, dfg.pred_lag, -_LONG_NS))).end_ns
        reached = np.maximum.accumulate([end[marks.first[0, ranks]].max(), *end[marks.last[:, ranks]].max(axis=1)])
        progress: np.ndarray = np.diff(reached)[np.searchsorted(marks.steps, self.steps)]
        return progress


@dataclass(frozen=True, kw_only=True)
class PartBlame(Blame):
    """The work of some ranks of a job, compared with that of all. Its graph has no edges."""

    of_job: SkeletonBlame
    at: tuple[int, ...]
    """Positions of the ranks among those of the job, whose nodes follow each other."""

    @cached_property
    def begin(self) -> np.ndarray:
        """Where the nodes of each rank begin, and where the last ones end, int64[ranks + 1]."""
        sizes = (len(self.of_job.nodes.columns[at]["dur_ns"]) for at in self.at)
        return np.array([*accumulate(sizes, initial=0)])

    @cached_property
    def own(self) -> np.ndarray:
        """Position of each node among those of its rank, int64[N]."""
        own: np.ndarray = np.arange(self.dfg.nodes) - np.repeat(self.begin[:-1], np.diff(self.begin))
        return own

    def by_rank(self, values: np.ndarray) -> list[np.ndarray]:
        """The `values` of all nodes, by rank."""
        return np.split(values, self.begin[1:-1])

    @cached_property
    def roles(self) -> np.ndarray:
        return self.of_job.roles

    @cached_property
    def work_ns(self) -> np.ndarray:
        work, job = self.dfg.dur_ns.copy(), self.of_job
        for at, begin in zip(self.at, self.begin.tolist(), strict=False):
            held = slice(job.held_from[at], job.held_from[at + 1])
            work[begin + job.nodes.held_at[at].astype(np.int64)] -= job.held_ns[held]
        return work

    @property
    def work(self) -> RankWork:
        return RankWork(self.dfg, self.work_ns, self.roles, self.of_job.nodes.keys)

    @cached_property
    def peers(self) -> Counterparts:
        return self.of_job.table.counterparts(self.work)

    @cached_property
    def late_ns(self) -> np.ndarray:
        return self.of_job.late_ns

    @cached_property
    def step_ns(self) -> float:
        return self.of_job.step_ns

    @cached_property
    def slow_ranks(self) -> tuple[Rank, ...]:
        return self.of_job.slow_ranks


def _skeletons(of_rank: tuple[CalibratedRank, _ComparedWork]) -> list[Skeleton]:
    """The skeletons of a rank's graph as recorded, and with each of its work; steps end with all work launched in them."""
    rank, work = of_rank
    dfg = rank.graph()
    ends, joins = _until_all_ends(dfg)
    made = [contract(ends, joins)]
    for dur_ns in (work.usual_ns, work.own_ns):
        if dur_ns is not None:
            dur = dfg.dur_ns.copy()
            dur[own_nodes(dfg)] = dur_ns
            made.append(contract(with_times(ends, dur, dfg.residual_ns), joins))
    return made


def _until_all_ends(dfg: Dfg) -> tuple[Dfg, np.ndarray]:
    """(the graph whose steps end with all work launched in them, mask of its joins)."""
    marks = dfg.marks
    ends, steps = with_ends(dfg, (dfg.step >= 0) & ~dfg.on(LaneKind.LOADER) & (dfg.lane != JOIN_LANE))
    last = marks.last.copy()
    last[np.searchsorted(marks.steps, steps), 0] = np.arange(dfg.nodes, ends.nodes)
    return replace(ends, marks=replace(marks, last=last)), ends.lane == JOIN_LANE
