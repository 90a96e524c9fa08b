"""Waits for the end of a backward pass, where an optimizer steps inside one.

There no profiler may be started or stopped: behind each node autograd puts the thread's state back as it was before, that
of the profiler too, and the process would crash.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from .memory import hide_from_dynamo


def is_running() -> bool:
    """Whether this thread is inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


class AfterBackward:
    """Does once what it was last asked to, when the thread that called `backward` comes out of it.

    A job that never asks keeps PyTorch as it is. The pass that is running at the first call is one too early to be seen to
    end: the next one counts.
    """

    def __init__(self) -> None:
        self._work: Callable[[], object] | None = None
        self._watches = False

    def do(self, work: Callable[[], object]) -> None:
        self._work = work
        if not self._watches:
            self._watches = True
            self._watch()

    def _watch(self) -> None:
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*arguments: Any, **options: Any) -> None:
            try:
                original(*arguments, **options)
            finally:
                self._come_out()

        hide_from_dynamo(backward)
        torch.autograd.backward = backward

    def _come_out(self) -> None:
        if self._work is None or is_running():  # Checkpointing runs one pass inside another.
            return
        work, self._work = self._work, None
        work()
