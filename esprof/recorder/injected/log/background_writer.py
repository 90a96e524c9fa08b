"""The recorder's background thread, which does all slow or deferrable work."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .circuit_breaker import CircuitBreaker

TICK_S = 0.25
_MAX_WAIT_FOR_THREAD_S = 5.0


class WriterTask(Protocol):
    """A task that runs at every tick. A fault ends only this task."""

    def tick(self, now_ns: int) -> None: ...

    def close(self) -> None:
        """Do the remaining work at the normal end of the process."""


class BackgroundWriter:
    """Runs `flush` and `tasks` at every tick, in a separate thread.

    A fault of `flush` is stored in `fault` for the training thread: only the thread that started a profiler may stop it.
    """

    def __init__(self, flush: Callable[[], None], tasks: Sequence[tuple[WriterTask, CircuitBreaker]]) -> None:
        self.fault: Exception | None = None
        self._flush = flush
        self._tasks = tasks
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="esprof", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, close the tasks and write the last notes. Raises the error of a failed write."""
        self._ending.set()
        self._thread.join(_MAX_WAIT_FOR_THREAD_S)
        for task, breaker in self._tasks:
            breaker.run(task.close)
        if self.fault is not None:
            raise self.fault
        if not self._thread.is_alive():
            self._flush()

    def _run(self) -> None:
        while not self._ending.wait(TICK_S):
            for task, breaker in self._tasks:
                breaker.run(task.tick, time.time_ns())
            try:
                self._flush()
            except Exception as fault:  # noqa: BLE001  the training thread raises it
                self.fault = fault
                return
