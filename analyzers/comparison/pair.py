"""The two runs of a comparison, and the changes between their recorded steps."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.comparison.intervals import Figures, changes, excused
from esprof.analyzers.comparison.side import ComparedSide
from esprof.analyzers.steps.job_steps import ComparedPhase
from esprof.analyzers.steps.step_groups import SLOW_TIMES_MEDIAN
from esprof.core.statistics import autocorrelation_time
from esprof.core.types import us

Columns = Callable[[ComparedSide], Sequence[np.ndarray]]
"""Times of the recorded steps of a run, float64[steps] each; as many for either run."""


@dataclass(frozen=True)
class RunPair:
    """The runs before and after a change."""

    before: ComparedSide
    after: ComparedSide

    @property
    def sides(self) -> tuple[ComparedSide, ComparedSide]:
        return self.before, self.after

    @cached_property
    def phase(self) -> ComparedPhase:
        """Steps without profiler if both runs have enough of them."""
        return "plain" if all(side.phase == "plain" for side in self.sides) else "timed"

    @cached_property
    def steps_ns(self) -> tuple[np.ndarray, np.ndarray]:
        """Measured duration of each compared step of the runs, float64[steps]."""
        before, after = (side.steps_ns(self.phase) for side in self.sides)
        return before, after

    @cached_property
    def correlated(self) -> float:
        """How many consecutive steps tell as much as one. The recorded steps are too few to know it by themselves."""
        return max(map(autocorrelation_time, self.steps_ns)) if self.phase == "plain" else 1.0

    def samples(self, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
        """What both runs know of each step without profiler; None if one lacks it, if it is 0, or if other steps are
        compared."""
        if self.phase != "plain":
            return None
        before, after = (np.array(side.plain.samples.get(metric, ())) for side in self.sides)
        return (before, after) if len(before) and len(after) and (before.any() or after.any()) else None

    def usual(self, side: ComparedSide) -> np.ndarray:
        """The recorded steps that are compared, bool[steps]: without slow ones where those are a part of their own."""
        took = side.recorded_ns
        usual: np.ndarray = took <= (SLOW_TIMES_MEDIAN * np.median(took) if self.phase == "plain" else np.inf)
        return usual

    def names(self, of: Callable[[ComparedSide], Iterable[str]]) -> list[str]:
        """The names of either run, sorted."""
        return sorted({name for side in self.sides for name in of(side)})

    def changes(self, of: Columns, rows: int) -> list[Figures]:
        """The change of each column in the recorded steps, with the intervals of a table of `rows`."""
        before, after = (
            np.stack([np.zeros(len(side.recorded_ns)), *of(side)], axis=1)[self.usual(side), 1:] for side in self.sides
        )
        return [excused(one, self.waited_us) for one in changes(before, after, rows, self.correlated)]

    @cached_property
    def waited_us(self) -> float:
        """How much longer the recorded steps after the change waited for a CPU: other processes may have used it."""
        before, after = (float(side.cpu_wait_ns[self.usual(side)].mean()) for side in self.sides)
        return us(after - before)
