"""Read the Python stacks of running threads. Runs in the user's job: stdlib only."""

import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, repeat
from types import FrameType
from typing import Any

_MAX_FRAMES = 1000
_COLLECTS_WHILE_ALLOCATING = sys.version_info < (3, 12)
_pausing = threading.RLock()


def stack_of(thread: int, limit: int = _MAX_FRAMES) -> list[FrameType]:
    """Return the frames of a thread, innermost first; none if the thread has ended."""
    with _collection_paused():
        return _outwards(sys._current_frames().get(thread), limit)


def stacks(limit: int = _MAX_FRAMES) -> dict[int, list[FrameType]]:
    """Return the frames of each Python thread, innermost first."""
    with _collection_paused():
        return {thread: _outwards(frame, limit) for thread, frame in sys._current_frames().items()}


def outwards(frame: FrameType | None, limit: int = _MAX_FRAMES) -> list[FrameType]:
    """Return `frame` and its callers."""
    with _collection_paused():
        return _outwards(frame, limit)


def _outwards(frame: FrameType | None, limit: int) -> list[FrameType]:
    """Follow `f_back` without a line of Python in between, so that the thread cannot run and return meanwhile."""
    attributes: chain[Any] = chain((frame,), repeat("f_back", limit - 1))
    found: deque[FrameType | None] = deque()
    with suppress(AttributeError):  # The outermost frame is followed by None.
        found.extend(accumulate(attributes, getattr))
    return [one for one in found if one is not None]


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause garbage collection where it may start at any allocation, as in Python 3.11.

    `f_back` allocates a frame object. If that starts a collection, `gc.callbacks` and finalizers run, the thread that is
    read may go on, and its function may return: the new object would then point to memory that is no longer a frame.
    """
    if not _COLLECTS_WHILE_ALLOCATING:
        yield
        return
    with _pausing:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


# A fork waits for the end of the pause: in the child nobody would end it.
os.register_at_fork(before=_pausing.acquire, after_in_parent=_pausing.release, after_in_child=_pausing.release)
