"""Watch the job's own profilers: a process can run only one, and the job's has precedence."""

import functools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.autograd import profiler as autograd_profiler
from torch.profiler import profiler as torch_profiler

from .window import ProfilerWindow

_SPAN = "_esprof_span"
"""Attribute of a profiler of the job: (start, end) of what it collected, in ns."""

_TAKEN = "_esprof_taken"
"""Attribute of a profiler of the job that is running."""


class Notices(NamedTuple):
    """Callbacks for events of the job's profiler, called on the job's own thread."""

    prepares: Callable[[], object]
    """It is about to start."""
    ends: Callable[[], object]
    """It has stopped."""
    exported: Callable[[str, int, int], object]
    """It has written a trace: (path, start, end of the recorded time, ns)."""


def watch(notices: Notices) -> None:
    """Call `notices` from now on, except for the profilers of the recorder's windows."""
    cls = autograd_profiler.profile

    def prepare(original: Callable[..., Any], profiler: Any) -> None:
        notices.prepares()
        setattr(profiler, _TAKEN, True)
        original(profiler)

    def start(original: Callable[..., Any], profiler: Any) -> None:
        original(profiler)
        setattr(profiler, _SPAN, (time.time_ns(), 0))

    def leave(original: Callable[..., Any], profiler: Any, *failure: object) -> Any:
        if hasattr(profiler, _SPAN):
            setattr(profiler, _SPAN, (getattr(profiler, _SPAN)[0], time.time_ns()))
        try:
            return original(profiler, *failure)
        finally:
            if hasattr(profiler, _TAKEN):  # A disabled profiler exits without having started.
                delattr(profiler, _TAKEN)
                notices.ends()

    def export(original: Callable[..., Any], profiler: Any, path: Any, *more: Any, **options: Any) -> Any:
        ProfilerWindow.at_work = True  # One class of profiler exports through the other.
        try:
            returned = original(profiler, path, *more, **options)
        finally:
            ProfilerWindow.at_work = False
        span = getattr(getattr(profiler, "profiler", profiler), _SPAN, None)
        if span is not None:
            notices.exported(os.path.abspath(path), *span)
        return returned

    _wrap(cls, "_prepare_trace", prepare)
    _wrap(cls, "_start_trace", start)
    _wrap(cls, "__exit__", leave)
    _wrap(cls, "export_chrome_trace", export)
    _wrap(torch_profiler._KinetoProfile, "export_chrome_trace", export)


def _wrap(cls: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method by `wrapper(original, profiler, …)` for profilers of the job; those of windows keep the original."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(profiler: Any, *arguments: Any, **options: Any) -> Any:
        if ProfilerWindow.at_work:
            return original(profiler, *arguments, **options)
        return wrapper(original, profiler, *arguments, **options)

    setattr(cls, name, method)
