"""Detects change points of the step time of a running job, after which an older proposal may be outdated."""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from statistics import median

from esprof.core.statistics import two_sided_rank_test
from esprof.run.logs import LiveStep

_NEWEST_STEPS = 10
"""Steps that must differ from the earlier ones."""
_MAX_STEPS_BEFORE = 100
"""Maximum number of earlier steps that they are compared with."""
_MIN_STEPS_BEFORE = 20
_MIN_CHANGE_SHARE = 0.1
"""Smallest relative change that counts."""
_ALPHA = 1e-4
"""Probability of a false alarm for independent steps. Low, since there is a test after every step."""


class ChangePointDetector:
    """Compares the newest steps with the earlier ones: the step time, and each rank's time per EST.

    The time per EST shows a rank that became slow even if another rank is still slower; for a rank without ESTs it is the
    time of the update. A few slow steps are no change point.
    """

    def __init__(self) -> None:
        self._setting: tuple[object, ...] | None = None
        self._last = -1
        self._steps: deque[tuple[float, ...]] = deque(maxlen=_MAX_STEPS_BEFORE + _NEWEST_STEPS)
        self.since: int | None = None
        """The first step after the last change point."""

    def begin(self, step: int) -> None:
        """Forget all steps before this one."""
        self._steps.clear()
        self.since = step

    def note(self, step: LiveStep) -> bool:
        """Add a step. True if a change point was detected; later steps are then compared with those after it."""
        if step.twice:
            return False
        setting, continues = (step.version, step.ests), step.step > self._last
        self._last = step.step
        if setting != self._setting or not continues:
            # After a new plan, other processes or a restart, another step time is expected. The first step is a warm-up.
            self._setting = setting
            self.begin(step.step + 1)
            return False
        updated_us = step.updated_us or (0.0,) * len(step.ests)
        of_ranks = zip(step.busy_us, step.ests, updated_us, strict=False)
        self._steps.append((step.took_us, *(busy / ests if ests else updated for busy, ests, updated in of_ranks)))
        if len(self._steps) < _MIN_STEPS_BEFORE + _NEWEST_STEPS:
            return False
        steps = list(self._steps)
        series = zip(zip(*steps[:-_NEWEST_STEPS], strict=True), zip(*steps[-_NEWEST_STEPS:], strict=True), strict=True)
        alike = [_count_after_change(before, newest) for before, newest in series if _differ(before, newest)]
        if not alike:
            return False
        newest = min(alike)
        self._steps = deque(steps[-newest:], maxlen=self._steps.maxlen)
        self.since = step.step - newest + 1
        return True


def _differ(before: Sequence[float], newest: Sequence[float]) -> bool:
    earlier, current = median(before), median(newest)
    return abs(current - earlier) > _MIN_CHANGE_SHARE * earlier and two_sided_rank_test(before, newest) < _ALPHA


def _count_after_change(before: Sequence[float], newest: Sequence[float]) -> int:
    """Number of newest steps after the change point; the first ones may be before it."""
    middle, is_above = (median(before) + median(newest)) / 2, median(newest) > median(before)
    count = sum(1 for _ in takewhile(lambda value: (value > middle) == is_above, reversed(newest)))
    return max(1, count)
