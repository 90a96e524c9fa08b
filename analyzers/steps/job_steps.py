"""The steps of the whole run, inside and outside of windows."""

from functools import cached_property, reduce
from typing import Literal

import numpy as np

from esprof.core.types import Rank
from esprof.run.run import Run
from esprof.run.schema import Table

ComparedPhase = Literal["plain", "timed"]
"""`plain` steps ran without the profiler, `timed` steps under it. They are never compared with each other."""


class JobSteps:
    """The steps of a Run on all its ranks. The table of each rank is read once, when first asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._tables: dict[Rank, Table] = {}
        self._phases: dict[Rank, np.ndarray] = {}
        self._rows: dict[Rank, tuple[np.ndarray, np.ndarray]] = {}
        self._common: dict[ComparedPhase, np.ndarray] = {}

    def table(self, rank: Rank) -> Table:
        """Every step of `rank`, recorded or not; see `schema.STEPS`."""
        if rank not in self._tables:
            self._tables[rank] = self.run.steps(rank)
        return self._tables[rank]

    def phases(self, rank: Rank) -> np.ndarray:
        """The phase of each step of `rank`, str or None, object[steps]."""
        if rank not in self._phases:
            self._phases[rank] = np.array(self.table(rank).texts("phase"), object)
        return self._phases[rank]

    def in_phase(self, rank: Rank, phase: str) -> np.ndarray:
        """Numbers of the steps of `rank` that were in `phase`, int64[steps]."""
        found: np.ndarray = self.table(rank).ints("step")[self.phases(rank) == phase]
        return found

    def last(self, rank: Rank) -> int:
        """The last step of `rank` that ended; 0 if there is none."""
        return int(self.table(rank).ints("step").max(initial=0))

    def numbers(self, phase: ComparedPhase) -> np.ndarray:
        """Numbers of the steps that were in `phase` on every rank, ascending, without the job's first step, int64[steps]."""
        if phase not in self._common:
            self._common[phase] = self._numbers(phase)
        return self._common[phase]

    @cached_property
    def on_all_ranks(self) -> np.ndarray:
        """Numbers of the steps that all ranks have, in whatever phase, ascending, int64[steps]."""
        found: np.ndarray = np.unique(
            reduce(np.intersect1d, [self.table(rank).ints("step") for rank in self.run.ranks])
        )
        return found

    def _numbers(self, phase: ComparedPhase) -> np.ndarray:
        ranks = self.run.ranks
        if not all(len(self.table(rank)) for rank in ranks):
            return np.zeros(0, np.int64)
        first = min(int(self.table(rank).ints("step").min()) for rank in ranks)
        common = np.unique(reduce(np.intersect1d, [self.in_phase(rank, phase) for rank in ranks]))
        found: np.ndarray = common[common != first]
        return found

    def _rows_of(self, rank: Rank, steps: np.ndarray) -> np.ndarray:
        """Rows of `steps` in the table of `rank`, ordered by step; if a step has several rows, the first."""
        if rank not in self._rows:
            self._rows[rank] = np.unique(self.table(rank).ints("step"), return_index=True)
        numbers, first = self._rows[rank]
        rows: np.ndarray = first[np.isin(numbers, steps)]
        return rows

    def rows(self, rank: Rank, steps: np.ndarray) -> Table:
        """The table of `rank` at `steps`, which it must have, one row for each."""
        return self.table(rank).where(self._rows_of(rank, steps))

    def over_ranks(self, steps: np.ndarray, column: str) -> np.ndarray:
        """A column of the step tables at `steps`, which all ranks have, int64[ranks, steps]; null is -1."""
        return np.stack([self.table(rank).ints(column)[self._rows_of(rank, steps)] for rank in self.run.ranks])

    def durations_ns(self, steps: np.ndarray) -> np.ndarray:
        """Duration of each of the job's `steps`, ns, int64[steps].

        The job's step lasts from when the last rank begins it until the last rank ends it, so that consecutive steps
        neither overlap nor leave a gap. A clock offset of one rank moves both step boundaries alike.
        """
        starts, took = self.over_ranks(steps, "start_ns"), self.over_ranks(steps, "dur_ns")
        of_job: np.ndarray = (starts + took).max(axis=0) - starts.max(axis=0)
        return of_job

    @cached_property
    def epochs(self) -> tuple[int, ...]:
        """Steps in which the first rank begins a further pass over a DataLoader that takes more than one step.

        A pass that begins and ends in one step is a validation.
        """
        rank = self.run.ranks[0]
        stages, steps = self.run.stages(rank), self.table(rank)
        nexts = stages.where(stages.is_kind("next"))
        starts, numbers = steps.ints("start_ns"), steps.ints("step")
        if not len(nexts) or not len(steps):
            return ()
        order = np.argsort(starts)
        at = np.searchsorted(starts[order], nexts.ints("end_ns"), side="right") - 1
        passes = nexts.ints("loader")
        found = []
        for number in np.unique(passes).tolist():
            of_pass = at[passes == number]
            if of_pass.max() > of_pass.min():
                found.append(int(of_pass.min()))
        # The first pass may have begun before the first step.
        return tuple(dict.fromkeys(int(numbers[order][first]) for first in sorted(found)[1:] if first >= 0))
