"""Notes Python's garbage collections that take long: as stages."""

import gc
import threading
import time
from collections.abc import Callable

from ..shared.stages import GARBAGE_COLLECTION
from .state import State

_SHORTEST_NS = 500_000
"""Collections below this many ns are not noted: the young ones come many times a second, and take microseconds."""


class CollectionProbe:
    """Told by Python when a collection begins and ends. Only those of the training thread count."""

    def __init__(self, state: State, note: Callable[[tuple[str, int, int]], None]) -> None:
        """`note` takes (name, start, end), in ns."""
        self._state = state
        self._note = note
        self._began_ns = 0

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.time_ns()
        elif self._began_ns and threading.get_ident() == self._state.thread:
            ended_ns = time.time_ns()
            if ended_ns - self._began_ns > _SHORTEST_NS:
                self._note((GARBAGE_COLLECTION, self._began_ns, ended_ns))
