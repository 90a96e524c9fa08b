"""One of two compared runs, with what is measured of its steps."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.comparison.answer import ComparedRun
from esprof.analyzers.comparison.path_time import PathTime, path_time
from esprof.analyzers.diagnosis import diagnose_replayed
from esprof.analyzers.finding import ACTIVITIES, Diagnosis
from esprof.analyzers.gate.baseline import Baseline, choose_phase, measure
from esprof.analyzers.ignore import Ignores
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.analyzers.steps.job_steps import ComparedPhase
from esprof.analyzers.views.breakdown import shares_of_steps
from esprof.core.types import Rank
from esprof.replay.replayed import Replayed
from esprof.run.run import Run

MIN_PLAIN_STEPS = 10
"""Fewest steps without profiler on both sides for which they are compared, and not the profiled ones."""

_OF_OTHERS = ("wait", "exposed_communication")
"""Activities in which a rank depends on other ranks."""


@dataclass(frozen=True)
class ComparedSide:
    """A run with its replay. Times are ns."""

    case: Case
    ignores: Ignores

    @classmethod
    def of(cls, run: Run, ignores: Ignores) -> "ComparedSide":
        """Raises InputError where the run has no graph."""
        replayed = Replayed.of(run)
        return cls(Case(replayed, RecordedJob(replayed.run)), ignores)

    @property
    def run(self) -> Run:
        return self.case.run

    @property
    def phase(self) -> ComparedPhase:
        """The steps that are compared where the other run has such steps, too."""
        return choose_phase(self.case.job.steps, MIN_PLAIN_STEPS)

    @cached_property
    def plain(self) -> Baseline:
        """What is known of each step without profiler."""
        return measure(self.case.job.steps, "plain")

    @cached_property
    def recorded_ns(self) -> np.ndarray:
        """Replayed duration of each steady-state step, float64[steps]: the sum of its critical path."""
        replayed = self.case.replayed
        took: np.ndarray = replayed.timeline.step_ns()[replayed.pricer.steady_at].astype(np.float64)
        return took

    def steps_ns(self, phase: ComparedPhase) -> np.ndarray:
        """Measured duration of each compared step, float64[steps]."""
        if phase == "plain":
            return np.array(self.plain.samples["step_time"])
        return self.case.replayed.pricer.measured_ns.astype(np.float64)

    @cached_property
    def path(self) -> PathTime:
        return path_time(self.case)

    @cached_property
    def own_ns(self) -> dict[Rank, np.ndarray]:
        """Time of each rank in each steady-state step in which it does not depend on other ranks, float64[steps]."""
        own = [at for at, activity in enumerate(ACTIVITIES) if activity not in _OF_OTHERS]
        shares = shares_of_steps(self.case.replayed)
        return {rank: of_rank[:, own].sum(axis=1).astype(np.float64) for rank, of_rank in shares.items()}

    @cached_property
    def cpu_wait_ns(self) -> np.ndarray:
        """Time in each steady-state step that the rank which waits longest for a CPU does so; 0 where unknown."""
        steps = np.array(self.case.replayed.steps.steady)
        waits = self.case.job.steps.over_ranks(steps, "ready_ns")
        found: np.ndarray = np.maximum(waits.max(axis=0), 0).astype(np.float64)
        return found

    @property
    def operations_a_step(self) -> float:
        """Operations and GPU work in a mean steady-state step, over all ranks."""
        dfg, steps = self.case.replayed.built.dfg, self.case.replayed.steps.steady
        return float(np.count_nonzero(np.isin(dfg.step, steps) & (dfg.event >= 0))) / len(steps)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        return diagnose_replayed(self.case.replayed, self.case.job, self.ignores)

    def described(self) -> ComparedRun:
        replayed = self.case.replayed
        return ComparedRun(
            sources=tuple(self.run.sources),
            command=self.run.meta.command,
            world_size=self.run.world_size,
            recorded_steps=replayed.steps.steady,
            explained_pct=round(replayed.explained_pct, 3),
        )
