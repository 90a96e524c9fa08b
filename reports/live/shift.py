"""Whether a job's steps have lastingly become longer or shorter, so that older advice is worth a second look."""

from collections import deque
from statistics import median, quantiles

from esprof.trace.live import LiveStep

_WINDOW = 50
_LEAST = 0.1
"""Least change of a step, relative, that counts."""


class Shift:
    """Compares the newest steps with those just after the last change. A single slow step is none, nor are a few."""

    def __init__(self) -> None:
        self._doing: tuple[object, ...] | None = None
        self._before_us: float | None = None
        self._newest: deque[float] = deque(maxlen=_WINDOW)

    def note(self, step: LiveStep) -> bool:
        """Whether steps have shifted with this one. It is told once: then those are what later ones are compared with."""
        if step.twice:
            return False
        doing = (step.version, tuple(step.ests))
        if doing != self._doing:  # Another plan or other processes: another length is no news.
            self._doing, self._before_us = doing, None
            self._newest.clear()
        self._newest.append(step.took_us)
        if len(self._newest) < _WINDOW:
            return False
        if self._before_us is not None:
            lower, _, upper = quantiles(self._newest, n=4)
            if self._before_us * (1 - _LEAST) <= upper and lower <= self._before_us * (1 + _LEAST):
                return False
        is_shift = self._before_us is not None
        self._before_us = median(self._newest)
        self._newest.clear()
        return is_shift
