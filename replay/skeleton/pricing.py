"""Prices of scenarios on a run whose ranks are built one by one.

The terms of a scenario that change ranks are applied to the graph of each, which is contracted again: each rank is built
once for all scenarios that are asked for together. Communication is changed on the skeleton of the job, where all of it is.
Slow ranks are made as fast as others by comparing the nodes of all ranks (`SkeletonBlame`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from esprof.core.types import Rank
from esprof.replay.answer import Prediction
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import Timeline, replay
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.ranks.blame import Blame
from esprof.replay.skeleton.blame import SkeletonBlame
from esprof.replay.skeleton.contract import Skeleton
from esprof.replay.skeleton.job import CalibratedJob
from esprof.replay.skeleton.scenarios import (
    UNCHANGED,
    ComparedScenario,
    RankScenario,
    RankTask,
    Replaced,
    SkeletonScenario,
    Untouched,
    bounded_terms,
    joined,
    needs_whole_graph,
    of_ranks,
    of_skeleton,
    replaced,
    scenarios_of_rank,
)
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.communication.links import RecordedLinks
from esprof.replay.whatif.error.held_out import prediction_of
from esprof.replay.whatif.error.intervals import KnownError
from esprof.replay.whatif.pricing import CHANGES_COMMUNICATION, Pricer
from esprof.replay.whatif.scenario import Declined, GraphPart, Scenario
from esprof.replay.whatif.term import Term, TermPhase

_Key = tuple[str, ...]
"""Terms that change ranks, in canonical spelling, sorted."""


@dataclass(frozen=True)
class _ChangedRanks:
    """What a scenario makes of all ranks."""

    ranks: list[RankScenario | Declined]
    notes: tuple[str, ...]
    """On the comparison of ranks."""


_Changes = Mapping[_Key, _ChangedRanks | Declined]
"""What the terms of scenarios make of the ranks, by those that change ranks."""


class _Mended(NamedTuple):
    """What a comparison of all ranks replaces."""

    of_ranks: list[Replaced] | list[None]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SkeletonPricer(Pricer):
    """Prices scenarios by skeletons; `dfg` is the one of the job as recorded."""

    job: CalibratedJob
    links: RecordedLinks
    without_residuals: Dfg
    """The skeleton of the job without unexplained delays."""
    of_first_steps: Dfg
    """The skeleton of the job with the durations of its first steps (`CalibratedRank.fitted`)."""
    skeletons: Sequence[Skeleton]
    """Those of its ranks as recorded."""
    workers: RankWorkers

    @cached_property
    def error(self) -> KnownError:
        return _SkeletonError(
            self.run,
            self.dfg,
            self.steady_at,
            self.measured_ns,
            self._progress_ns(self.baseline),
            without_residuals=self.without_residuals,
            of_first_steps=self.of_first_steps,
        )

    def _compared(self) -> Blame:
        return SkeletonBlame.of_job(self.job, self.steps, self.workers)

    def timeline(self, spec: str) -> Timeline:
        raise Declined("a run of this size is replayed rank by rank: its timeline is not known as a whole")

    def _made_all(
        self, scenarios: Mapping[tuple[str, ...], tuple[Term, ...]]
    ) -> Iterator[tuple[tuple[str, ...], Scenario | Declined]]:
        asked: dict[tuple[str, ...], tuple[Term, ...]] = {}
        for key, terms in scenarios.items():
            if reason := self._reason_against(terms):
                yield key, Declined(reason)
            else:
                asked[key] = terms
        changed = self._changed_ranks(part for terms in asked.values() for part in (terms, *_bounds(terms)))
        for key, terms in asked.items():
            try:
                yield key, self._scenario(terms, changed)
            except Declined as reason:
                yield key, reason

    def _nobody_waits(self, scenario: Scenario) -> bool:
        assert isinstance(scenario, SkeletonScenario)
        return not scenario.kept.edges and scenario.kept.nobody_waits

    def _reason_against(self, terms: Iterable[Term]) -> str | None:
        """Why a scenario cannot be replayed rank by rank; None if it can."""
        for term in terms:
            # A worker reads ranks from the directory of the run, where one that was left out still is.
            if gone := [rank for rank in term.only if rank not in self.run.ranks]:
                return f"rank {gone[0]} is not in this run"
            if needs_whole_graph(term):
                return (
                    f"{term.text} needs the graph of all ranks at once, and a run of this size is replayed rank by rank"
                )
            if term.kind.name in CHANGES_COMMUNICATION and self._slowing is not None:
                return (
                    f"{term.text} changes how communication slows down concurrent work (esprof probe), which is not known "
                    "for a run of this size: it is replayed rank by rank"
                )
        return None

    def _changed_ranks(self, asked: Iterable[tuple[Term, ...]]) -> _Changes:
        """What the terms of these scenarios that change ranks make of them. Each rank is visited once, and only if one of
        them may change it."""
        changing = {key: terms for every in asked if (key := _key(terms := of_ranks(every)))}
        found: dict[_Key, _ChangedRanks | Declined] = {}
        mended: dict[_Key, _Mended] = {}
        for key, terms in changing.items():
            try:
                mended[key] = self._mended(terms)
            except Declined as reason:
                found[key] = reason
        specs = {key: ",".join(term.text for term in _alone(changing[key])) for key in mended}
        tasks: dict[Rank, dict[_Key, RankTask]] = {}
        for at, rank in enumerate(self.run.ranks):
            for key, one in mended.items():
                task = RankTask(specs[key], one.of_ranks[at])
                if task.may_change:
                    tasks.setdefault(rank, {})[key] = task
        work = partial(scenarios_of_rank, self.steps)
        of_tasks = self.job.over_tasks("Changing the ranks", work, tasks.items(), self.workers)
        made = dict(zip(tasks, of_tasks, strict=True))
        for key, one in mended.items():
            changed = [made.get(rank, {}).get(key, UNCHANGED) for rank in self.run.ranks]
            found[key] = _ChangedRanks(changed, one.notes)
        return found

    def _mended(self, terms: Iterable[Term]) -> _Mended:
        """What those of the terms that compare ranks replace. Raises Declined."""
        mending = [term for term in terms if term.kind.phase is TermPhase.MEND]
        if not mending:
            return _Mended([None] * len(self.run.ranks), ())
        blame = self.blame
        assert isinstance(blame, SkeletonBlame)
        after = apply(ComparedScenario(self.run, blame, blame.dfg, compared=blame), mending)
        assert isinstance(after, ComparedScenario)
        return _Mended(replaced(blame.nodes, after.compared.nodes), after.notes)

    def _scenario(self, terms: tuple[Term, ...], changed: _Changes) -> Scenario:
        """The skeleton of the job as these terms change it, which made `changed` of the ranks. Raises Declined."""
        now = self._changed(terms, changed)
        if bounded := bounded_terms(terms):
            now = now.bounded(bounded.bound(*(self._changed(some, changed) for some in _bounds(terms))))
        return apply(now, [term for term in terms if term.kind.phase >= TermPhase.BOUND])

    def _changed(self, terms: tuple[Term, ...], changed: _Changes) -> Scenario:
        """`_scenario` without what bounds its steps, and without changed loaders."""
        recorded = SkeletonScenario(
            self.run,
            Blame(self.dfg, self.steps),
            self.dfg,
            only_mends=all(term.kind.phase is TermPhase.MEND for term in terms),
            part=GraphPart.COMMUNICATION,
            contracted=self.dfg,
            kept=Untouched(),
            recorded_links=self.links,
        )
        now: Scenario = recorded
        if changing := of_ranks(terms):
            ranks = changed[_key(changing)]
            if isinstance(ranks, Declined):
                raise ranks
            now = joined(recorded, self.skeletons, _alone(changing), ranks.ranks).noted(*ranks.notes)
        return apply(now, of_skeleton(terms))


def _bounds(terms: tuple[Term, ...]) -> tuple[tuple[Term, ...], ...]:
    """The terms of the two scenarios that tell what bounds the steps of this one (`BoundedTerms`); none if nothing does."""
    bounded = bounded_terms(terms)
    return () if bounded is None else (bounded.before, bounded.before + bounded.terms)


def _alone(terms: Iterable[Term]) -> list[Term]:
    """Those of the terms that change a rank by itself."""
    return [term for term in terms if term.kind.phase is not TermPhase.MEND]


def _key(terms: Iterable[Term]) -> _Key:
    return tuple(sorted(term.canonical for term in terms))


@dataclass(frozen=True, kw_only=True)
class _SkeletonError(KnownError):
    """The error of a replay by skeletons, which are as in `SkeletonPricer`."""

    without_residuals: Dfg
    of_first_steps: Dfg

    @cached_property
    def strict(self) -> float:
        replayed_ns = replay(self.without_residuals).step_ns()[self.steady_at]
        return float(replayed_ns.sum() / self.measured_ns.sum() - 1)

    @cached_property
    def prediction(self) -> Prediction:
        replayed_ns = replay(self.of_first_steps).step_ns()[self.steady_at]
        return prediction_of(np.array(self.dfg.marks.steps)[self.steady_at], replayed_ns, self.measured_ns)
