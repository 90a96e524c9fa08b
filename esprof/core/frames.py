"""Read the Python stacks of running threads. Runs in the user's job: stdlib only."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, repeat, starmap
from operator import attrgetter, methodcaller
from types import CodeType, FrameType
from typing import Any

Place = tuple[CodeType, int | None, int]
"""Where a frame is: its code, its line if it has one, and the offset of its last instruction in bytes."""

_PLACE_OF: Callable[[Any], Place] = attrgetter("f_code", "f_lineno", "f_lasti")
_MAX_FRAMES = 1000
_COLLECTS_WHILE_ALLOCATING = sys.version_info < (3, 12)
_pausing = threading.RLock()


def stack_of(thread: int, limit: int = _MAX_FRAMES) -> list[Place]:
    """Return where a thread is, innermost place first; nothing if the thread has ended."""
    with _collection_paused():
        return _outwards(map(methodcaller("get", thread), starmap(sys._current_frames, [()])), limit)


def stacks(limit: int = _MAX_FRAMES) -> dict[int, list[Place]]:
    """Return where each Python thread is, innermost place first."""
    return {thread: stack_of(thread, limit) for thread in list(sys._current_frames())}


def outwards(frame: FrameType | None, limit: int = _MAX_FRAMES) -> list[Place]:
    """Return the places of `frame`, which this thread runs, and of its callers."""
    with _collection_paused():
        return _outwards((frame,), limit)


def _outwards(innermost: Iterable[FrameType | None], limit: int) -> list[Place]:
    """Follow `f_back` without a line of Python in between, so that the thread cannot run and return meanwhile.

    No frame is kept: one that outlives its function keeps the function's variables, and this thread would then finalize
    them. A tensor's memory would be freed in a thread that is not profiled.
    """
    attributes: chain[Any] = chain(innermost, repeat("f_back", limit - 1))
    found: list[Place] = []
    with suppress(AttributeError):  # The outermost frame is followed by None.
        found.extend(map(_PLACE_OF, accumulate(attributes, getattr)))
    return found


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
