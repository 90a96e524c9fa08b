"""Slow ranks of a run whose ranks are built one by one: their work is compared without edges, and replayed by skeletons."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.replay.dfg import JOIN_LANE, Dfg, LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.ranks.blame import Blame
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.contract import Skeleton, contract
from esprof.replay.skeleton.job import CalibratedJob
from esprof.replay.skeleton.joined import join
from esprof.replay.skeleton.nodes import JobNodes, nodes_of_rank, own_nodes
from esprof.replay.skeleton.ranks import with_ends


class _ComparedWork(NamedTuple):
    """Durations of a rank's own nodes (`own_nodes`), ns, int64."""

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
    """`Blame` of a job whose `dfg` has no edges."""

    job: CalibratedJob
    nodes: JobNodes
    workers: RankWorkers

    @classmethod
    def of_job(cls, job: CalibratedJob, steps: tuple[int, ...], workers: RankWorkers) -> "SkeletonBlame":
        """Read the nodes of all ranks. Raises RanksLost, as all else does that builds ranks."""
        nodes = JobNodes.of(list(job.over_ranks("Reading the work of ranks", nodes_of_rank, workers)))
        return cls(nodes.dfg, steps, job=job, nodes=nodes, workers=workers)

    @cached_property
    def step_ns(self) -> float:
        return float(self._replayed.recorded.mean())

    def _progress_alone_ns(self, suspects: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return self._replayed.alike, self._replayed.alone

    @cached_property
    def _replayed(self) -> _Replayed:
        suspects = self._suspects()
        usual = np.rint(self.usual_ns).astype(np.int64)
        work = (
            _ComparedWork(
                mine := self.nodes.of_rank(at, usual),
                mine + np.rint(self.nodes.of_rank(at, self.excess_ns)).astype(np.int64) if at in suspects else None,
            )
            for at in range(len(self.dfg.marks.ranks))
        )
        found = list(self.job.over_tasks("Comparing ranks", _skeletons, work, self.workers))
        alike = [one[1] for one in found]
        alone = [[*alike[:at], found[at][2], *alike[at + 1 :]] for at in suspects]
        return _Replayed(
            self._progress_of([one[0] for one in found]),
            self._progress_of(alike),
            np.array([self._progress_of(one) for one in alone], np.int64).reshape(len(suspects), -1).T,
        )

    def _progress_of(self, skeletons: Sequence[Skeleton]) -> np.ndarray:
        """Growth of the end of all work in each of `steps`, ns, int64[steps], where it is at the ends of steps."""
        timeline = replay(join(skeletons).dfg)
        marks, end = timeline.dfg.marks, timeline.end_ns
        reached = np.maximum.accumulate([end[marks.first[0]].max(), *end[marks.last].max(axis=1)])
        progress: np.ndarray = np.diff(reached)[np.searchsorted(marks.steps, self.steps)]
        return progress


def _skeletons(of_rank: tuple[CalibratedRank, _ComparedWork]) -> list[Skeleton]:
    """The skeletons of a rank's graph as recorded, and with each of its work; steps end with all work launched in them."""
    rank, work = of_rank
    dfg = rank.graph()
    own, made = own_nodes(dfg), [dfg]
    for dur_ns in (work.usual_ns, work.own_ns):
        if dur_ns is not None:
            dur = dfg.dur_ns.copy()
            dur[own] = dur_ns
            made.append(replace(dfg, dur_ns=dur))
    return [_until_all_ends(one) for one in made]


def _until_all_ends(dfg: Dfg) -> Skeleton:
    marks = dfg.marks
    ends, steps = with_ends(dfg, (dfg.step >= 0) & ~dfg.on(LaneKind.LOADER) & (dfg.lane != JOIN_LANE))
    last = marks.last.copy()
    last[np.searchsorted(marks.steps, steps), 0] = np.arange(dfg.nodes, ends.nodes)
    return contract(replace(ends, marks=replace(marks, last=last)), ends.lane == JOIN_LANE)
