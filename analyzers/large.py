"""Diagnosis of runs whose ranks are replayed one by one.

Prices, slow ranks, breakdowns and the critical path are those of all ranks. What else rules look at
are the graphs of some ranks: of those where most is lost, and of others.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.finding import ACTIVITIES, RankBreakdown
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.analyzers.views.breakdown import breakdown_of
from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.large import LargeReplay
from esprof.replay.skeleton.pricing import SkeletonPricer
from esprof.replay.skeleton.shown_ranks import ShownRanks
from esprof.run.run import RunWarning

MAX_RANKS_EXAMINED = 16
"""Most ranks whose graphs are examined: a graph of one takes as much memory as building it."""

NEED_ALL_GRAPHS = frozenset({"ESP207", "ESP208", "ESP305"})
"""Findings that need the graphs of all ranks at once: stages and micro-batches of a pipeline, and queues of collectives."""

_LIKELY = (
    "straggler=fix", "straggler[work]=fix", "straggler[host_gap]=fix", "straggler[compute]=fix", "straggler[cpu]=fix",
    "straggler[allocator]=fix", "straggler[data]=fix", "balance=fix", "allocator=0", "barriers=0", "compile=0",
    "launches=graph", "loops=0", "recompute=0", "runqueue=0", "small_operations=0", "sync=0",
)  # fmt: skip
"""What rules of diagnosis ask for: priced together, they need each rank once."""


@dataclass(frozen=True)
class LargeCase(Case):
    """A large run: `replayed` holds the graphs of some ranks."""

    of_all_ranks: tuple[RankBreakdown, ...]
    large: LargeReplay

    @classmethod
    def of(cls, large: LargeReplay, job: RecordedJob) -> "LargeCase":
        pricer = large.pricer
        assert isinstance(pricer, SkeletonPricer)
        found = tuple(pricer.job.over_ranks("Breaking down steps", _breakdown, pricer.workers))
        pricer.prices(_LIKELY)
        return cls(ShownRanks.on(examined_ranks(large, found), large), job, found, large)

    @cached_property
    def breakdown(self) -> tuple[RankBreakdown, ...]:
        return self.of_all_ranks

    @property
    def communication(self) -> Replayed:
        return self.large

    @property
    def warning(self) -> RunWarning:
        """What the findings of such a run rest on."""
        text = (
            f"prices, slow ranks and the breakdown are of all {len(self.of_all_ranks):,} ranks; all else was looked for on "
            f"{readable.ranks(self.ranks)}. Not looked for in a run of this size: {', '.join(sorted(NEED_ALL_GRAPHS))}"
        )
        return RunWarning("ranks-examined", text, self.ranks)


def case_of(replayed: Replayed, job: RecordedJob) -> Case:
    """The case of a replayed run, whose steps and samples are in `job`."""
    return LargeCase.of(replayed, job) if isinstance(replayed, LargeReplay) else Case(replayed, job)


def _breakdown(rank: CalibratedRank) -> RankBreakdown:
    return breakdown_of(rank.run.rank(rank.rank), rank.timeline(rank.graph()), rank.steady_at)


def examined_ranks(large: LargeReplay, breakdown: tuple[RankBreakdown, ...]) -> tuple[Rank, ...]:
    """The ranks to examine, ascending: the slow ones, those that delay the others most, those with most time in each
    activity, and others at equal distances."""
    blame = large.pricer.blame
    ranks = blame.dfg.marks.ranks
    latest = [ranks[column] for column in np.argsort(-blame.delay_ns, kind="stable").tolist()]
    most = [max(breakdown, key=lambda one: getattr(one, activity)).rank for activity in ACTIVITIES]
    spread = [ranks[at] for at in np.linspace(0, len(ranks) - 1, MAX_RANKS_EXAMINED).round().astype(int).tolist()]
    in_turn = dict.fromkeys([*blame.slow_ranks, *latest[:1], *most, *spread])
    return tuple(sorted([*in_turn][:MAX_RANKS_EXAMINED]))
