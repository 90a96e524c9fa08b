"""This process among others: it ends with its parent, and waits for others with patience."""

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_SHORTEST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
"""Between two looks at what others do."""


def end_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
    """Have this process receive the signal at the end of its parent (prctl(2)). Exit now if `parent` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        raise SystemExit(0)


class Patience:
    """Pauses of an eighth of the time waited so far, until `timeout_s` have passed: no wait lasts much longer for them."""

    def __init__(self, timeout_s: float) -> None:
        self._began_s = time.monotonic()
        self._timeout_s = timeout_s

    @property
    def is_over(self) -> bool:
        return self._waited_s > self._timeout_s

    def pause(self) -> None:
        time.sleep(min(max(self._waited_s / 8, _SHORTEST_PAUSE_S), LONGEST_PAUSE_S))

    @property
    def _waited_s(self) -> float:
        return time.monotonic() - self._began_s
