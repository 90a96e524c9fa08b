"""The one thread that the recorder keeps beside the training thread: it does what may wait, and all that is slow."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .circuit_breaker import CircuitBreaker

TICK_S = 0.25
_MAX_WAIT_FOR_THREAD_S = 5.0


class WriterPart(Protocol):
    """Work that is done at every tick. A fault in a part ends that part alone."""

    def tick(self, now_ns: int) -> None: ...

    def close(self) -> None:
        """Do what is left, as the process ends in good order."""


class BackgroundWriter:
    """Runs `flush` and the parts every tick, in a thread of its own.

    A fault of `flush` is kept in `fault` for the training thread, which alone may stop a profiler that it has started.
    """

    def __init__(self, flush: Callable[[], None], parts: Sequence[tuple[WriterPart, CircuitBreaker]]) -> None:
        self.fault: Exception | None = None
        self._flush = flush
        self._parts = parts
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="esprof", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, close the parts and write the last notes. Raises what writing raises."""
        self._ending.set()
        self._thread.join(_MAX_WAIT_FOR_THREAD_S)
        for part, breaker in self._parts:
            breaker.run(part.close)
        if self.fault is not None:
            raise self.fault
        if not self._thread.is_alive():
            self._flush()

    def _run(self) -> None:
        while not self._ending.wait(TICK_S):
            for part, breaker in self._parts:
                breaker.run(part.tick, time.time_ns())
            try:
                self._flush()
            except Exception as fault:  # noqa: BLE001  of whatever kind, it is the training thread's to answer
                self.fault = fault
                return
