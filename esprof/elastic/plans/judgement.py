"""Whether an adopted plan was any good: the job's steps before it and with it."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from esprof.plan import Plan, Promise

Outcome = Literal["kept", "missed", "reverted"]

_LEAST = 5
"""Steps whose median says something."""
_SETTLES = 1
"""Steps after a change that are no measure: caches are cold, loaders start."""


@dataclass
class Steps:
    """The job's latest steps."""

    took_us: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    _left_out: int = 0

    def note(self, took_us: float) -> None:
        if self._left_out:
            self._left_out -= 1
        else:
            self.took_us.append(took_us)

    def changed(self) -> None:
        """What the steps were tells nothing of those to come."""
        self.took_us.clear()
        self._left_out = _SETTLES

    def median_us(self, last: int) -> float | None:
        """Of the last so many; None where there are too few."""
        took = list(self.took_us)[-last:]
        return median(took) if len(took) >= min(last, _LEAST) else None


@dataclass(frozen=True)
class Judgement:
    """What an adopted plan is held to."""

    plan: Plan
    before_us: float | None
    """Median step before it; None where there were too few."""

    @property
    def promise(self) -> Promise:
        """What all its parts promise together: that of the quickest step."""
        parts = (self.plan.parts.assignment, self.plan.parts.compression)
        return min((part.predicted for part in parts if part is not None), key=lambda one: one.step_us)

    def outcome(self, steps: Steps) -> tuple[Outcome, float] | None:
        """(what becomes of it, the median step with it); None while its window is not over."""
        fallback = self.plan.fallback
        if len(steps.took_us) < fallback.window:
            return None
        after = median(list(steps.took_us)[: fallback.window])
        if self.before_us is not None and after > self.before_us * (1 + fallback.margin):
            return "reverted", after
        return ("missed" if after > self.promise.high_us else "kept"), after
