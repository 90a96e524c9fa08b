"""DataLoader workers that threads currently wait for: set by the probe of loaders, read by snapshots."""

import threading
from typing import Any

_iterators: dict[int, Any] = {}
"""Identifier of a thread -> the DataLoader's iterator in whose `next` it is."""


def begin(iterator: Any) -> Any:
    """Note that this thread is in the `next` of `iterator`. Returns the enclosing iterator for `end`, or None."""
    own = threading.get_ident()
    enclosing, _iterators[own] = _iterators.get(own), iterator
    return enclosing


def end(enclosing: Any) -> None:
    if enclosing is None:
        _iterators.pop(threading.get_ident(), None)
    else:
        _iterators[threading.get_ident()] = enclosing


def is_one_here() -> bool:
    """Whether this thread is in the `next` of an iterator."""
    return threading.get_ident() in _iterators


def workers(thread: int) -> list[tuple[int, int]]:
    """Number and process id of the worker that makes the batch that `thread` waits for, or of all of the loader's workers
    where batches come in any order; empty where it waits for none."""
    iterator: Any = _iterators.get(thread)
    processes = getattr(iterator, "_workers", ())
    everyone = [(number, process.pid) for number, process in enumerate(processes) if process.pid is not None]
    task = iterator._task_info.get(iterator._rcvd_idx) if everyone and getattr(iterator, "_in_order", True) else None
    return [one for one in everyone if one[0] == task[0]] if task else everyone
