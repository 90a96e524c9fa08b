"""Measure how long the training thread of a rank ran in each step, and how long it waited for a CPU."""

import os
import threading
import time
from typing import NamedTuple

from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log
from . import control_groups
from .kernel_files import opened, opened_schedule, ready_ns

MIN_BETWEEN_READINGS_NS = 250_000_000
"""Minimum time between two readings of the throttled time, ns: for a reading the kernel may visit all CPUs."""

_UNITS = {b"throttled_usec": 1_000, b"throttled_time": 1}
"""Field of `cpu.stat` with the throttled time, in cgroup v2 and v1 -> its unit in ns."""

_MAX_STAT_BYTES = 4096


class Ran(NamedTuple):
    """CPU time of a thread between two step boundaries, ns; None if unknown."""

    cpu_ns: int | None = None
    """How long it ran."""
    ready_ns: int | None = None
    """How long it was ready but another thread had the CPU. In the remaining time it slept or waited."""
    throttled_ns: int | None = None
    """How long the process's control groups were throttled since the last reading, summed over CPUs."""


class CpuTime:
    """Reads the CPU time at each step boundary, on the training thread. The readings take some microseconds in total."""

    def __init__(self, log: Log) -> None:
        self._breaker = CircuitBreaker("reading of CPU time", log)
        self._thread = 0
        self._schedule: int | None = None
        self._groups: list[int] | None = None
        self._before = (0, 0)
        self._throttled_ns = 0
        self._due_ns = 0

    def at_boundary(self) -> Ran:
        """CPU time of this thread since its last call; unknown if another thread called in between."""
        return self._breaker.run(self._at_boundary) or Ran()

    def _at_boundary(self) -> Ran:
        thread = threading.get_native_id()
        is_same_thread = thread == self._thread
        if not is_same_thread:
            # To close it only once: its number is soon reused by another file.
            old, self._schedule = self._schedule, None
            if old is not None:
                os.close(old)
            self._thread, self._schedule = thread, opened_schedule(thread)
        before, self._before = self._before, (time.thread_time_ns(), self._read_ready_ns())
        throttled_ns = self._read_throttled_ns()
        if not is_same_thread:
            return Ran()
        ran, ready = (after - earlier for after, earlier in zip(self._before, before, strict=True))
        return Ran(ran, None if self._schedule is None else ready, throttled_ns)

    def _read_ready_ns(self) -> int:
        return ready_ns(self._schedule) if self._schedule is not None else 0

    def _read_throttled_ns(self) -> int | None:
        """Throttled time since the last reading, ns; None if no reading is due, or without control groups."""
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns or self._groups == []:
            return None
        is_first = self._groups is None
        if self._groups is None:
            self._groups = _cpu_stats()
        self._due_ns = now_ns + MIN_BETWEEN_READINGS_NS
        before, self._throttled_ns = self._throttled_ns, sum(map(_throttled_ns, self._groups))
        return None if is_first or not self._groups else self._throttled_ns - before


def _cpu_stats() -> list[int]:
    """`cpu.stat` of each control group that contains this process, open for reading. A root group has no quota."""
    files = (opened(path) for path in control_groups.files("cpu", "cpu.stat", "cpu.stat"))
    return [file for file in files if file is not None]


def _throttled_ns(file: int) -> int:
    """Throttled time of the control group of an open `cpu.stat`, ns, summed over CPUs."""
    lines = (line.split() for line in os.pread(file, _MAX_STAT_BYTES, 0).splitlines())
    return next((int(words[1]) * _UNITS[words[0]] for words in lines if words and words[0] in _UNITS), 0)
