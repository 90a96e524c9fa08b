"""Distinguish a thread that hangs from one that makes progress, by the activity of its process."""

import os
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from ....core.frames import stack_of
from .snapshot import collective_progress

_MAX_IDLE_CPU_SHARE = 0.02
"""Share of one CPU up to which a thread counts as polling. Gloo has such a thread for each process group: it wakes a hundred
times a second and takes 0.2 % of a fast CPU."""
_MAX_IDLE_BYTES = 1 << 20
"""Bytes read and written per interval above which a process counts as busy."""
_INTERVALS_PER_PATIENCE = 4
_MAX_FRAMES = 200
_MAX_STACKS = 100_000


class _Progress(NamedTuple):
    """Cumulative activity of a process."""

    cpu_ns: int
    """CPU time of the process without the observing thread, and of its children, ns."""
    threads: dict[int, int]
    """Kernel thread id -> CPU time of the other threads, ns; empty if unknown."""
    size: int
    """Bytes read and written."""


class Stillness:
    """Time for which a thread has made no progress, ns of the monotonic clock.

    A thread makes progress when it has a stack that it did not have before, or when collectives make progress. A process is
    busy when it, or a child, uses the CPU, reads or writes. A waiting loop has the same stacks repeatedly.
    """

    def __init__(self, patience_ns: float) -> None:
        """The activity of the process is measured over intervals of a quarter of `patience_ns`."""
        self._interval_ns = patience_ns / _INTERVALS_PER_PATIENCE
        self._stacks: set[int] = set()
        self._status = b""
        self._summed_ns = time.monotonic_ns()
        self._done = _done()
        self._new_ns = self._busy_ns = self._summed_ns

    def observe(self, thread: int) -> None:
        """Update with the activity of the thread since the last call."""
        now_ns, stack, moved = time.monotonic_ns(), _stack_hash(thread), collective_progress()
        if stack not in self._stacks or moved != self._status:
            if len(self._stacks) >= _MAX_STACKS:
                self._stacks.clear()
            self._stacks.add(stack)
            self._new_ns, self._status = now_ns, moved
        if now_ns - self._summed_ns >= self._interval_ns:
            done = _done()
            if _is_work(self._done, done, now_ns - self._summed_ns):
                self._busy_ns = now_ns
            self._done, self._summed_ns = done, now_ns

    @property
    def same_place_ns(self) -> int:
        """Time since the thread was last at a new stack, ns."""
        return time.monotonic_ns() - self._new_ns

    @property
    def idle_ns(self) -> int:
        """Time since the thread was at a new stack or its process was busy, ns."""
        return time.monotonic_ns() - max(self._new_ns, self._busy_ns)


def _is_work(before: _Progress, after: _Progress, elapsed_ns: int) -> bool:
    """Whether a process was busy in between, apart from polling threads."""
    most_ns = _MAX_IDLE_CPU_SHARE * elapsed_ns
    ran_ns = (cpu_ns - before.threads.get(thread, 0) for thread, cpu_ns in after.threads.items())
    polling_ns = sum(cpu_ns for cpu_ns in ran_ns if cpu_ns <= most_ns)
    return after.cpu_ns - before.cpu_ns - polling_ns > most_ns or after.size - before.size > _MAX_IDLE_BYTES


def _done() -> _Progress:
    times = os.times()
    children = round((times.children_user + times.children_system) * 1e9) + _cpu_of_children(os.getpid())
    cpu_ns = time.process_time_ns() - time.thread_time_ns() + children
    return _Progress(cpu_ns, _cpu_of_threads(), _bytes_moved())


def _cpu_of_threads() -> dict[int, int]:
    """Kernel thread id -> CPU time of each other thread of this process, ns."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for thread in map(int, os.listdir("/proc/self/task")):
            with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat") as file:
                found[thread] = int(file.read().split()[0])
    found.pop(threading.get_native_id(), None)
    return found


def _stack_hash(thread: int) -> int:
    return hash(tuple((id(code), instruction) for code, _, instruction in stack_of(thread, _MAX_FRAMES)))


def _cpu_of_children(pid: int) -> int:
    """CPU time of the live descendants of a process, ns; 0 if unknown."""
    total, tick_ns = 0, 10**9 // os.sysconf("SC_CLK_TCK")
    for child in _children(pid):
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{child}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) * tick_ns
            total += _cpu_of_children(child)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _bytes_moved() -> int:
    with suppress(OSError), open("/proc/self/io") as file:
        moved = dict(line.split(": ") for line in file)
        return int(moved["rchar"]) + int(moved["wchar"])
    return 0
