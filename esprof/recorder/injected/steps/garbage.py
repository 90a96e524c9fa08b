"""Notes Python's garbage collections that take long: as stages."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from ....run.raw.stages import GARBAGE_COLLECTION
from ..state import StepState

_MIN_COLLECTION_NS = 500_000
"""Collections below this many ns are not noted: the young ones come many times a second, and take microseconds."""


class CollectionProbe:
    """Told by Python when a collection begins and ends. Only those of the training thread count."""

    def __init__(
        self, state: StepState, note: Callable[[tuple[str, int, int]], None], sample_at: Callable[[FrameType], None]
    ) -> None:
        """`note` takes (name, start, end), in ns, and `sample_at` the frame that the training thread is at."""
        self._state = state
        self._note = note
        self._look_at = sample_at
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
                if frame is not None:  # Python's end collects, too.
                    # The sampler had to wait for Python's lock, and would find the thread at another line.
                    self._look_at(frame)
