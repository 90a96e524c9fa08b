"""How long the training thread of a rank ran in each step, and how long something else had its CPU."""

import os
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log
from . import control_groups

MIN_BETWEEN_READINGS_NS = 250_000_000
"""Least time (ns) between two readings of how long control groups were throttled: for one the kernel may visit all CPUs."""

_UNITS = {b"throttled_usec": 1_000, b"throttled_time": 1}
"""Line of `cpu.stat` that tells it, in cgroup v2 and v1 -> ns in its unit."""

_MAX_STAT_BYTES = 4096


class Ran(NamedTuple):
    """What a thread had of the CPUs from one border of steps to the next, ns; None where it is not known."""

    cpu_ns: int | None = None
    """How long it ran."""
    ready_ns: int | None = None
    """How long it could have run, and something else did: the rest of the time it slept, or waited."""
    throttled_ns: int | None = None
    """How long the process's control groups were stopped at their quota, since this was told last, summed over CPUs."""


class CpuTime:
    """Asked at each border of steps, on the training thread. All readings together take some microseconds."""

    def __init__(self, log: Log) -> None:
        self._breaker = CircuitBreaker("reading of CPU time", log)
        self._thread = 0
        self._schedule: int | None = None
        self._groups: list[int] | None = None
        self._before = (0, 0)
        self._throttled_ns = 0
        self._due_ns = 0

    def at_border(self) -> Ran:
        """What this thread had since it last asked; nothing where another thread did so in between."""
        return self._breaker.run(self._at_border) or Ran()

    def _at_border(self) -> Ran:
        thread = threading.get_native_id()
        went_on = thread == self._thread
        if not went_on:
            old, self._schedule = self._schedule, None  # To be closed once only: its number is soon another file's.
            self._thread, self._schedule = thread, _opened(f"/proc/self/task/{thread}/schedstat", old)
        before, self._before = self._before, (time.thread_time_ns(), self._read_ready_ns())
        throttled_ns = self._read_throttled_ns()
        if not went_on:
            return Ran()
        ran_ns, ready_ns = (after - earlier for after, earlier in zip(self._before, before, strict=True))
        return Ran(ran_ns, None if self._schedule is None else ready_ns, throttled_ns)

    def _read_ready_ns(self) -> int:
        return int(os.pread(self._schedule, 64, 0).split()[1]) if self._schedule is not None else 0

    def _read_throttled_ns(self) -> int | None:
        """How long the control groups were throttled since this was read last; None where it is not due, or no group is."""
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns or self._groups == []:
            return None
        is_first = self._groups is None
        if self._groups is None:
            self._groups = _cpu_stats()
        self._due_ns = now_ns + MIN_BETWEEN_READINGS_NS
        before, self._throttled_ns = self._throttled_ns, sum(map(_throttled_ns, self._groups))
        return None if is_first or not self._groups else self._throttled_ns - before


def _opened(path: str, instead_of: int | None) -> int | None:
    """The file opened for reading, and another closed; None where it cannot be."""
    if instead_of is not None:
        os.close(instead_of)
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _cpu_stats() -> list[int]:
    """`cpu.stat` of each control group around this process, open for reading. A root group knows of no quota."""
    opened = (_opened(path, None) for path in control_groups.files("cpu", "cpu.stat", "cpu.stat"))
    return [file for file in opened if file is not None]


def _throttled_ns(file: int) -> int:
    """How long the control group of an open `cpu.stat` has been throttled, ns, summed over CPUs."""
    lines = (line.split() for line in os.pread(file, _MAX_STAT_BYTES, 0).splitlines())
    return next((int(words[1]) * _UNITS[words[0]] for words in lines if words and words[0] in _UNITS), 0)
