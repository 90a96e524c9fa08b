"""Measure how a batch is made: its parts, the sequences padded, and what its process ran, waited for and read meanwhile."""

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ....run.raw.stages import DECODE, TRANSFORM
from .batch import PaddedSequences, Padding
from .kernel_files import opened, opened_schedule, ready_ns

_KNOWN = (
    ("PIL.ImageFile", "ImageFile", "load", DECODE),
    ("torchvision.io.image", "", "decode_image", DECODE),
    ("torchvision.io.image", "", "decode_jpeg", DECODE),
    ("torchvision.io.image", "", "decode_png", DECODE),
    ("torchvision.io", "", "decode_image", DECODE),
    ("torchvision.io", "", "decode_jpeg", DECODE),
    ("torchvision.io", "", "decode_png", DECODE),
    ("torchvision.transforms.transforms", "Compose", "__call__", TRANSFORM),
    ("torchvision.transforms.v2._container", "Compose", "forward", TRANSFORM),
)
"""(module, class or "", function, part): functions of other packages that count as a part once their module is imported."""

MIN_READ_NS = 8_000_000
"""Counters of the kernel are read only after a batch that took longer, ns, so that they cost less than 0.5 % of its time."""

_MAX_FILE_BYTES = 4096


class Counters(NamedTuple):
    """What the kernel counted of a process; None if unknown."""

    ready_ns: int | None = None
    """Time that the calling thread was ready but another thread had the CPU, ns."""
    read_bytes: int | None = None
    """Bytes read from storage."""
    read_chars: int | None = None
    """Bytes that the process asked for by `read`, from storage or from memory."""


class Made(NamedTuple):
    """What the making of one batch took."""

    counters: Counters
    parts: dict[str, tuple[int, int]]
    """Name of a part -> (time, CPU time of the thread), ns; time of a part inside another counts for the inner one only."""
    padded: Padding | None
    """Padding of sequences that were put together; None if none were."""


class BatchMaking:
    """Measures one batch at a time, on the thread that makes it: a loader worker's, or the training thread."""

    def __init__(self) -> None:
        self._files: _CounterFiles | None = None
        self._thread = 0
        self._open: list[str] = []
        self._since = (0, 0)
        self._parts: dict[str, tuple[int, int]] = {}
        self._before: Counters | None = None
        self._start_ns = 0
        self._is_long = False
        self._padded = PaddedSequences()

    def begin(self) -> None:
        """Begin a batch on the calling thread."""
        _recognise(self)
        self._thread, self._open, self._parts = threading.get_ident(), [], {}
        self._before = self._counters() if self._is_long else None
        self._start_ns = time.monotonic_ns()
        self._padded.begin()

    def end(self) -> Made:
        """End the batch."""
        self._is_long = time.monotonic_ns() - self._start_ns > MIN_READ_NS
        counters = Counters() if self._before is None else _difference(self._before, self._counters())
        self._thread = 0
        return Made(counters, self._parts, self._padded.end())

    @contextmanager
    def part(self, name: str) -> Iterator[bool]:
        """Measure a part of a batch; yields False outside of a batch, where it measures nothing."""
        if threading.get_ident() != self._thread:
            yield False
            return
        self._count_open()
        self._open.append(name)
        try:
            yield True
        finally:
            # An exception may have ended the batch, and a generator may end after it.
            if self._open and self._open[-1] == name:
                self._count_open()
                self._open.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, counted as the part `name` of a batch."""

        @functools.wraps(function)
        def measured(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*arguments, **options)
            with self.part(name):
                return function(*arguments, **options)

        return measured

    def _count_open(self) -> None:
        """Add the time since the last call to the innermost open part."""
        now = time.monotonic_ns(), time.thread_time_ns()
        if self._open:
            took, ran = self._parts.get(self._open[-1], (0, 0))
            self._parts[self._open[-1]] = took + now[0] - self._since[0], ran + now[1] - self._since[1]
        self._since = now

    def _counters(self) -> Counters:
        who = os.getpid(), threading.get_native_id()
        if self._files is None or self._files.who != who:
            # Files that a parent process opened show the parent's counters.
            self._files = _CounterFiles(who)
        return self._files.read()


class _CounterFiles:
    """The kernel's counters of one thread and its process, kept open."""

    def __init__(self, who: tuple[int, int]) -> None:
        self.who = who
        self._schedule = opened_schedule(who[1])
        self._io = opened("/proc/self/io")

    def __del__(self) -> None:
        for file in (self._schedule, self._io):
            if file is not None:
                os.close(file)

    def read(self) -> Counters:
        ready = None if self._schedule is None else ready_ns(self._schedule)
        if self._io is None:
            return Counters(ready)
        lines = dict(line.split(b": ") for line in os.pread(self._io, _MAX_FILE_BYTES, 0).splitlines())
        return Counters(ready, int(lines[b"read_bytes"]), int(lines[b"rchar"]))


def _difference(before: Counters, after: Counters) -> Counters:
    pairs = zip(before, after, strict=True)
    return Counters(*(None if old is None or new is None else new - old for old, new in pairs))


_recognised: set[tuple[str, str, str]] = set()
"""Functions of `_KNOWN` that are wrapped already, in this process or the one that it was forked from."""


def _recognise(making: BatchMaking) -> None:
    """Wrap the functions of `_KNOWN` whose modules have been imported meanwhile."""
    for module_name, class_name, name, part in _KNOWN:
        key = (module_name, class_name, name)
        if key in _recognised or module_name not in sys.modules:
            continue
        _recognised.add(key)
        module = sys.modules[module_name]
        owner = getattr(module, class_name, None) if class_name else module
        function = getattr(owner, name, None)
        if owner is not None and function is not None:
            setattr(owner, name, making.timed(part, function))
