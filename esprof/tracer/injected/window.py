"""One window of torch.profiler over a few steps, and the watch that yields the profiler to the job."""

import os
import sys
from collections.abc import Callable

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile, record_function

from .environment import changed

_QUIET = {"KINETO_LOG_LEVEL": "6"}
"""Above every level that Kineto prints to stderr at; it reads the variable once, when it is first prepared."""


class Window:
    """Events of consecutive steps, exported to `path` as a Kineto trace.

    `prepare` may be called steps before `start`: the profiler's own start-up cost then falls outside the window.
    """

    opening = False
    """Whether it is a Window that is preparing the profiler just now, and not the job."""

    def __init__(self, path: str, *, stacks: bool) -> None:
        self._path = path
        self._stacks = stacks
        self._step: record_function | None = None
        self._started = False
        self._profile = profile(
            activities=_activities(),
            record_shapes=not stacks,
            with_stack=stacks,
            experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True),
        )

    def prepare(self) -> None:
        Window.opening = True
        try:
            with changed({} if "KINETO_LOG_LEVEL" in os.environ else _QUIET):
                self._profile.prepare_trace()
        finally:
            Window.opening = False

    def start(self) -> None:
        self._profile.start_trace()
        self._started = True

    def begin_step(self, step: int) -> None:
        """End the running step's annotation and begin that of `step`."""
        self._end_step()
        self._step = record_function(f"ProfilerStep#{step}")
        self._step.__enter__()

    def close(self, *, keep: bool) -> None:
        """Stop, and write the trace if it is to be kept: whole under its name, or not at all."""
        self._end_step()
        if not self._started:
            self._profile.start_trace()  # A profiler that is prepared can only be stopped by way of a start.
        self._profile.stop_trace()
        if keep:
            self._profile.export_chrome_trace(f"{self._path}.part")
            os.replace(f"{self._path}.part", self._path)

    def let_go_in_child(self) -> None:
        """In a forked child, which inherits the running profiler: collect nothing there.

        A loader worker would otherwise keep kilobytes of every operation until it ends. To stop the profiler is no way: it
        would talk to the GPU, which a forked child must not.
        """
        if self._started:
            torch._C._autograd._clear_callbacks()  # type: ignore[attr-defined]
            if self._stacks:
                sys.setprofile(None)

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def on_foreign_use(react: Callable[[], None]) -> None:
    """Call `react` before the job itself prepares a profiler: there can be only one in a process."""
    prepare: Callable[[autograd_profiler.profile], None] = autograd_profiler.profile._prepare_trace

    def prepare_after_reaction(self: autograd_profiler.profile) -> None:
        if not Window.opening:
            react()
        prepare(self)

    setattr(autograd_profiler.profile, "_prepare_trace", prepare_after_reaction)  # noqa: B010  a method, to mypy


def _activities() -> list[ProfilerActivity]:
    """CUDA only where the job has initialised it: asking for it would otherwise do so in the job's stead."""
    cuda = [ProfilerActivity.CUDA] if torch.cuda.is_initialized() else []
    return [ProfilerActivity.CPU, *cuda]
