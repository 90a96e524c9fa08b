"""Durations of the phases of a step, for each EST."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.profiler import record_function

from esprof.core.assignment import Est
from esprof.core.types import Ns
from esprof.run.schema import EST_STEP_PREFIX

_NOTHING = contextlib.nullcontext()


@dataclass(frozen=True)
class Span:
    """One phase of a step on this rank; times are ns since the Unix epoch."""

    what: str
    """The phase: `data`, `forward`, `backward`, `switch`, `stage`, `reduce` or `optimizer`."""
    est: Est | None
    start_ns: Ns
    end_ns: Ns


class StepSpans:
    """Records the spans of the running step if `keep`, and marks the EST steps for a profiler in any case.

    On a GPU a recorded span ends when the current stream is idle, so the launches of one span do not overlap the kernels of
    another. Without telemetry nothing waits.
    """

    def __init__(self, device: torch.device, *, keep: bool = False) -> None:
        self.est: Est | None = None
        """The running EST; None outside of EST steps."""
        self._device = device
        self._keep = keep
        self._spans: list[Span] = []

    @contextlib.contextmanager
    def est_step(self, est: Est) -> Iterator[None]:
        """An EST step: the spans within belong to it."""
        self.est = est
        try:
            with record_function(f"{EST_STEP_PREFIX}{est}"):
                yield
        finally:
            self.est = None

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Record nothing in the block."""
        keep, self._keep = self._keep, False
        try:
            yield
        finally:
            self._keep = keep

    def __call__(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self._noted(what) if self._keep else _NOTHING

    @contextlib.contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        start_ns = time.time_ns()
        yield
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self._spans.append(Span(what, self.est, start_ns, time.time_ns()))

    def take(self) -> list[Span]:
        """The spans recorded since the last call."""
        taken, self._spans = self._spans, []
        return taken
