"""Record long collections of Python's garbage collector as stages."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from ....run.raw.stages import GARBAGE_COLLECTION
from ..state import StepState

_MIN_COLLECTION_NS = 500_000
"""Shortest recorded collection, ns: young generations are collected many times a second, in microseconds."""


class CollectionProbe:
    """Records collections on the training thread, through `gc.callbacks`."""

    def __init__(
        self, state: StepState, note: Callable[[tuple[str, int, int]], None], sample_at: Callable[[FrameType], None]
    ) -> None:
        """`note` takes (name, start, end), in ns, and `sample_at` the frame that the training thread is at."""
        self._state = state
        self._note = note
        self._sample_at = sample_at
        self._began_ns = 0

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.time_ns()
        elif self._began_ns and threading.get_ident() == self._state.thread:
            ended_ns = time.time_ns()
            if ended_ns - self._began_ns > _MIN_COLLECTION_NS:
                self._note((GARBAGE_COLLECTION, self._began_ns, ended_ns))
                frame = sys._getframe().f_back
                if frame is not None:  # None at the exit of Python, which collects, too.
                    # The sampler waits for the GIL and would find the thread at a later line.
                    self._sample_at(frame)
