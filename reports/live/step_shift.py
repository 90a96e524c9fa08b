"""Whether a running job's steps have lastingly become longer or shorter, so that older advice is worth a second look."""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from statistics import median

from esprof.core.statistics import two_sided_rank_test
from esprof.run.logs import LiveStep

_NEWEST_STEPS = 10
"""Steps that have to be unlike those before."""
_MAX_STEPS_BEFORE = 100
"""Steps that they are held against, at most."""
_MIN_STEPS_BEFORE = 20
_MIN_CHANGE_SHARE = 0.1
"""Least change, relative, that counts."""
_ALPHA = 1e-4
"""Chance of a change that is none, if steps were independent; it is asked after every step."""


class Shift:
    """Holds the newest steps against those before them, and what each rank's ESTs took in them: a rank that has become slow
    shows there at once, even where another one is slower still; one without ESTs by its update. A single slow step is no
    shift, nor are a few."""

    def __init__(self) -> None:
        self._doing: tuple[object, ...] | None = None
        self._last = -1
        self._steps: deque[tuple[float, ...]] = deque(maxlen=_MAX_STEPS_BEFORE + _NEWEST_STEPS)
        self.since: int | None = None
        """The first step that is like the newest ones, as far as is known."""

    def begin(self, step: int) -> None:
        """Forget what was before this step."""
        self._steps.clear()
        self.since = step

    def note(self, step: LiveStep) -> bool:
        """Whether steps have shifted with this one. It is told once: then those are what later ones are compared with."""
        if step.twice:
            return False
        doing, went_on = (step.version, step.ests), step.step > self._last
        self._last = step.step
        if doing != self._doing or not went_on:
            # Another plan or other processes: another length is no news. Or the job has begun again at an earlier step.
            # The first step settles.
            self._doing = doing
            self.begin(step.step + 1)
            return False
        updated_us = step.updated_us or (0.0,) * len(step.ests)
        of_ranks = zip(step.busy_us, step.ests, updated_us, strict=False)
        self._steps.append((step.took_us, *(busy / ests if ests else updated for busy, ests, updated in of_ranks)))
        if len(self._steps) < _MIN_STEPS_BEFORE + _NEWEST_STEPS:
            return False
        steps = list(self._steps)
        series = zip(zip(*steps[:-_NEWEST_STEPS], strict=True), zip(*steps[-_NEWEST_STEPS:], strict=True), strict=True)
        alike = [_like_the_last(before, newest) for before, newest in series if _differ(before, newest)]
        if not alike:
            return False
        newest = min(alike)
        self._steps = deque(steps[-newest:], maxlen=self._steps.maxlen)
        self.since = step.step - newest + 1
        return True


def _differ(before: Sequence[float], newest: Sequence[float]) -> bool:
    was, now = median(before), median(newest)
    return abs(now - was) > _MIN_CHANGE_SHARE * was and two_sided_rank_test(before, newest) < _ALPHA


def _like_the_last(before: Sequence[float], newest: Sequence[float]) -> int:
    """How many of the newest are on the new side: some may still have been like those before."""
    middle, is_above = (median(before) + median(newest)) / 2, median(newest) > median(before)
    count = sum(1 for _ in takewhile(lambda value: (value > middle) == is_above, reversed(newest)))
    return max(1, count)
