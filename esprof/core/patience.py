"""How long a process waits for others, and how often it looks."""

import time

_SHORTEST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02


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
