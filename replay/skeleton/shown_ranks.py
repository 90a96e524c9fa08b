"""Whole graphs of some ranks of a run whose ranks are built one by one, with the times that they have in the job."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from esprof.core.types import Rank
from esprof.replay.engine.timeline import Timeline
from esprof.replay.ranks.blame import Blame
from esprof.replay.ranks.counterparts import Counterparts
from esprof.replay.skeleton.blame import PartBlame, SkeletonBlame
from esprof.replay.skeleton.large import LargeReplay
from esprof.replay.skeleton.pricing import SkeletonPricer


@dataclass(frozen=True, kw_only=True)
class ShownRanks(LargeReplay):
    """A large run as it is seen on some of its ranks: `built.dfg` and `timeline` are theirs. Prices, slow ranks and the
    critical path are those of the job."""

    shown: Timeline

    @classmethod
    def on(cls, ranks: Sequence[Rank], large: LargeReplay) -> "ShownRanks":
        """Build the graphs of these `ranks`, which are ascending."""
        assert isinstance(large.pricer, SkeletonPricer)
        shown = large.pricer.job.timeline(ranks)
        same = {field.name: getattr(large, field.name) for field in fields(large)}
        return cls(**same | {"built": replace(large.built, dfg=shown.dfg), "shown": shown})

    @property
    def timeline(self) -> Timeline:
        return self.shown

    @cached_property
    def blame(self) -> Blame:
        of_job = self.pricer.blame
        assert isinstance(of_job, SkeletonBlame)
        return _ShownBlame(self.shown.dfg, of_job.steps, of_job.gaps_wait, of_job=of_job)


@dataclass(frozen=True, kw_only=True)
class _ShownBlame(Blame):
    """Who delays the steps of a job, on the nodes of some of its ranks."""

    of_job: SkeletonBlame

    @cached_property
    def roles(self) -> np.ndarray:
        roles: np.ndarray = self.of_job.roles[self._columns]
        return roles

    @cached_property
    def _part(self) -> PartBlame:
        """The nodes of the ranks, as they are compared with those of the job."""
        return self.of_job.of_ranks(self.dfg.marks.ranks)

    @cached_property
    def work_ns(self) -> np.ndarray:
        return self._shown(self._part.work_ns, 0)

    @cached_property
    def peers(self) -> Counterparts:
        found = self._part.peers
        return Counterparts(
            self._shown(found.own, fill=False),
            *(self._shown(values, np.nan) for values in (found.others, found.median, found.mean)),
        )

    @cached_property
    def usual_ns(self) -> np.ndarray:
        return self._shown(self._part.usual_ns, 0)

    @cached_property
    def shares_role(self) -> np.ndarray:
        return self._shown(self._part.shares_role, fill=False)

    @cached_property
    def late_ns(self) -> np.ndarray:
        late: np.ndarray = self.of_job.late_ns[:, self._columns]
        return late

    @cached_property
    def step_ns(self) -> float:
        return self.of_job.step_ns

    @cached_property
    def slow_ranks(self) -> tuple[Rank, ...]:
        return self.of_job.slow_ranks

    @cached_property
    def _columns(self) -> np.ndarray:
        """Where the ranks stand among those of the job."""
        return np.searchsorted(self.of_job.dfg.marks.ranks, self.dfg.marks.ranks)

    @cached_property
    def _at(self) -> tuple[np.ndarray, np.ndarray]:
        """(nodes of the ranks, the same nodes of `_part`)."""
        part = self._part
        in_part = part.by_rank(np.arange(part.dfg.nodes))
        # Only on a lane the order of nodes is sure to be the same in both.
        mine, theirs = (
            np.concatenate([nodes[np.argsort(dfg.lane[nodes], kind="stable")] for nodes in of_ranks])
            for dfg, of_ranks in ((self.dfg, map(self.dfg.nodes_of, self.dfg.marks.ranks)), (part.dfg, in_part))
        )
        return mine, theirs

    def _shown(self, values: np.ndarray, fill: float) -> np.ndarray:
        """Those of the `values` of the nodes of `_part` that the nodes of the ranks have; `fill` for joins."""
        shown = np.full(self.dfg.nodes, fill, values.dtype)
        mine, theirs = self._at
        shown[mine] = values[theirs]
        return shown
