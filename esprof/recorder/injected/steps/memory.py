"""Sample the memory of a rank at the end of a step and of its forward pass, backward pass and update."""

import functools
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from ...shared.torch_features import hide_from_dynamo
from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log
from ..state import StepState
from ..windows.held import held_sizes
from . import control_groups

MIN_BETWEEN_SAMPLES_NS = 250_000_000
"""Minimum time between two sampled steps, ns: the steps in between only read the clock."""

_PAGE = resource.getpagesize()

Statistics = Callable[[], dict[str, Any]]
"""What `torch.cuda.memory_stats_as_nested_dict` returns: statistics of the current device, or nothing without CUDA."""


class MemoryProbe:
    """Notes rows `memories`: (step, phase, at_ns, allocated, reserved, peak_allocated, rss), in bytes or None.

    `phase` is what has just ended in `step`: `forward` (up to the call of backward, loading of data included), `backward`,
    `optimizer` (from there to the end of the step, clipping included), or None for the end of a step whose phases were not
    sampled. The allocator's peak is the job's own, and never reset here. Where it has changed since the row before, it was
    reached in between, exactly; where not, all that is known of a phase is what was held at its end. Of the resident set
    nothing but that is ever known.
    """

    def __init__(
        self, state: StepState, log: Log, statistics: Statistics = torch.cuda.memory_stats_as_nested_dict
    ) -> None:
        self._state = state
        self._log = log
        self._statistics = statistics
        self._breaker = CircuitBreaker("sampling of memory", log)
        self._due_ns = 0
        self._in_sampled_step = False
        self._has_backward = False
        self._resident: _Resident | None = None

    def install(self) -> None:
        """Wrap `torch.autograd.backward` of this process."""
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*arguments: Any, **options: Any) -> None:
            if not self._in_sampled_step or threading.get_ident() != self._state.thread:
                original(*arguments, **options)
                return
            self._breaker.run(self._begin_backward)
            try:
                original(*arguments, **options)
            finally:
                self._breaker.run(self._end_backward)

        hide_from_dynamo(backward)
        torch.autograd.backward = backward

    def at_step(self) -> None:
        """Take a sample at the end of a step, if one is due. Only the training thread calls this."""
        now_ns = time.monotonic_ns()
        if self._in_sampled_step or now_ns >= self._due_ns:
            self._breaker.run(self._end_step, now_ns)

    def note_model(self) -> None:
        """Note what the process holds from step to step: parameters, gradients, and states of optimizers."""
        self._breaker.run(lambda: self._log.note("model-size", **held_sizes()))

    def _end_step(self, now_ns: int) -> None:
        if self._resident is None:
            self._begin()
        self._note("optimizer" if self._has_backward else None, self._state.step - 1)
        self._has_backward = False
        self._in_sampled_step = now_ns >= self._due_ns
        if self._in_sampled_step:
            self._due_ns = now_ns + MIN_BETWEEN_SAMPLES_NS

    def _begin_backward(self) -> None:
        self._note("forward", self._state.step)
        self._in_sampled_step = False  # Backward calls of activation checkpointing belong to this pass.

    def _end_backward(self) -> None:
        self._note("backward", self._state.step)
        self._in_sampled_step = self._has_backward = True

    def _note(self, phase: str | None, step: int) -> None:
        statistics = self._statistics()
        allocated = statistics["allocated_bytes"]["all"] if statistics else {}
        reserved = statistics["reserved_bytes"]["all"] if statistics else {}
        resident = self._resident.bytes() if self._resident is not None else None
        held = allocated.get("current"), reserved.get("current"), allocated.get("peak"), resident
        self._log.roll("memories", (step, phase, time.time_ns(), *held))

    def _begin(self) -> None:
        self._resident = _Resident()
        total, of = limit()
        self._log.note("memory-limit", limit=total, of=of)


class _Resident:
    """The resident set of the process that made this: reading the open file costs a tenth of opening it again."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY)

    def bytes(self) -> int:
        return int(os.pread(self._file, 64, 0).split()[1]) * _PAGE


def limit() -> tuple[int, str]:
    """Most bytes that this process can have, and of what: `cuda`, its share of the device, or `rss`, the machine's memory.

    The machine's memory is shared with other processes, and may be limited by a control group.
    """
    if torch.cuda.is_initialized():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        return int(total * torch.cuda.get_per_process_memory_fraction()), "cuda"
    of_groups = _limits(control_groups.files("memory", "memory.max", "memory.limit_in_bytes"))
    return min([_PAGE * os.sysconf("SC_PHYS_PAGES"), *of_groups]), "rss"


def _limits(files: Iterable[str]) -> Iterator[int]:
    """Yield the limits in these files of control groups, bytes."""
    for path in files:
        with suppress(OSError, ValueError), open(path) as file:  # Without a limit it says `max`.
            yield int(file.read())
