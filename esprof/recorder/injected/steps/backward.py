"""Waits for the end of a backward pass, where an optimizer steps inside one.

Inside one no profiler may be started or stopped: after each node autograd restores the thread's state, that of the profiler
included, and the process would crash.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...shared.torch_features import hide_from_dynamo


def is_running() -> bool:
    """Whether this thread is inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


class AfterBackward:
    """Does the work that it was given last, once, when a call of `backward` returns.

    `torch.autograd.backward` is wrapped at the first `do`, not before. The pass that runs at that moment is not seen to
    end: the work is done after the next one.
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
