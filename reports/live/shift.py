"""Whether a running job's steps have lastingly become longer or shorter, so that older advice is worth a second look."""

from collections import deque
from collections.abc import Sequence
from statistics import median

from scipy.stats import mannwhitneyu

from esprof.trace.live import LiveStep

_NEWEST = 10
"""Steps that have to be unlike those before."""
_BEFORE = 100
"""Steps that they are held against, at most."""
_LEAST_BEFORE = 20
_LEAST = 0.1
"""Least change, relative, that counts."""
_ALPHA = 1e-4
"""Chance of a change that is none, if steps were independent; it is asked after every step."""


class Shift:
    """Holds the newest steps against those before them, and what each rank's ESTs took in them: a rank that has become slow
    shows there at once, even where another one is slower still. A single slow step is no shift, nor are a few."""

    def __init__(self) -> None:
        self._doing: tuple[object, ...] | None = None
        self._last = -1
        self._steps: deque[tuple[float, ...]] = deque(maxlen=_BEFORE + _NEWEST)
        self.since: int | None = None
        """The first step that is like the newest ones, as far as is known."""

    def note(self, step: LiveStep) -> bool:
        """Whether steps have shifted with this one. It is told once: then those are what later ones are compared with."""
        if step.twice:
            return False
        doing, went_on = (step.version, step.ests), step.step > self._last
        self._last = step.step
        if doing != self._doing or not went_on:
            # Another plan or other processes: another length is no news. Or the job has begun again at an earlier step.
            # The first step settles.
            self._doing, self.since = doing, step.step + 1
            self._steps.clear()
            return False
        shares = zip(step.busy_us, step.ests, strict=False)
        self._steps.append((step.took_us, *(busy / ests if ests else 0.0 for busy, ests in shares)))
        if len(self._steps) < _LEAST_BEFORE + _NEWEST:
            return False
        steps = list(self._steps)
        if not any(map(_differ, zip(*steps[:-_NEWEST], strict=True), zip(*steps[-_NEWEST:], strict=True))):
            return False
        self._steps = deque(steps[-_NEWEST:], maxlen=self._steps.maxlen)
        self.since = step.step - _NEWEST + 1
        return True


def _differ(before: Sequence[float], newest: Sequence[float]) -> bool:
    was, now = median(before), median(newest)
    return abs(now - was) > _LEAST * was and float(mannwhitneyu(before, newest).pvalue) < _ALPHA
