"""Judge a plan by the step times before and with it, or by those of a trial."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Protocol

import msgspec

from esprof.core.plan import Plan, PlanPart, PlanPromise
from esprof.elastic.plans.trial import SETTLES, TrialSchedule, TrialSteps, typical

Outcome = Literal["kept", "missed", "reverted"]

_MIN_STEPS = 5
"""Minimum number of steps for a median."""


@dataclass
class LatestSteps:
    """Times of the latest steps since the last change, us."""

    took_us: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    _left_out: int = 0

    def note(self, took_us: float) -> None:
        if self._left_out:
            self._left_out -= 1
        else:
            self.took_us.append(took_us)

    def changed(self) -> None:
        """Drop the steps before a change."""
        self.took_us.clear()
        self._left_out = SETTLES

    def last(self, count: int) -> list[float]:
        """The last `count` step times; none if there are too few."""
        took = list(self.took_us)[-count:]
        return took if len(took) >= min(count, _MIN_STEPS) else []


@dataclass(frozen=True)
class Verdict:
    """The outcome of a plan, and the step times behind it, us: medians of a window, or means of a trial's blocks."""

    outcome: Outcome
    before_us: float | None
    after_us: float | None
    gain_low_us: float | None = None
    gain_high_us: float | None = None
    reason: str = ""


class Judge(Protocol):
    """Observes the steps after a plan was applied, and judges it once."""

    plan: Plan

    def step_ended(self, step: int, took_us: float) -> Verdict | None:
        """The verdict; None while there are too few steps."""


def promise_of(plan: Plan) -> PlanPromise:
    """The prediction of the shortest step among all sections of a plan."""
    sections: tuple[PlanPart[Any] | None, ...] = msgspec.structs.astuple(plan.parts)
    promises = [section.predicted for section in sections if section is not None]
    return min(promises, key=lambda one: one.step_us)


@dataclass
class WindowJudge:
    """Compares the median step of a window with the median before the plan."""

    plan: Plan
    before_us: list[float]
    """Steps before the plan, us; empty if there were too few."""
    _steps: LatestSteps = field(default_factory=lambda: LatestSteps(_left_out=SETTLES))

    def step_ended(self, step: int, took_us: float) -> Verdict | None:
        self._steps.note(took_us)
        fallback = self.plan.fallback
        if len(self._steps.took_us) < fallback.window:
            return None
        after = median(self._steps.took_us)
        if not self.before_us:
            reason = "there were too few steps before it to compare with"
            return Verdict(_accepted(self.plan, after), None, after, reason=reason)
        before = median(self.before_us)
        outcome = "reverted" if after > before * (1 + fallback.margin) else _accepted(self.plan, after)
        return Verdict(outcome, before, after)


class TrialJudge:
    """Accepts a plan if the gain in its trial is significantly above zero; ends a trial early if there clearly is none."""

    def __init__(self, plan: Plan, schedule: TrialSchedule, before_us: list[float]) -> None:
        self.plan = plan
        self._measured = TrialSteps(schedule, plan.fallback.margin, before_us[SETTLES:])

    def step_ended(self, step: int, took_us: float) -> Verdict | None:
        measured = self._measured
        measured.note(step, took_us)
        if measured.is_hopeless(step):
            before, after = typical(measured.earlier_us), typical(measured.took_us[0])
            return Verdict("reverted", before, after, reason="every step with it was longer than every step before")
        if not measured.is_over(step):
            return None
        gain = measured.gain()
        if gain is None:
            return Verdict("reverted", None, None, reason="its trial had too few steps to measure a gain")
        figures = (gain.before_us, gain.after_us, gain.low_us, gain.high_us)
        if gain.low_us <= 0:
            return Verdict("reverted", *figures, reason="its gain is not significantly above zero")
        return Verdict(_accepted(self.plan, gain.after_us), *figures)


def _accepted(plan: Plan, after_us: float) -> Outcome:
    return "missed" if after_us > promise_of(plan).high_us else "kept"
