"""Wait for the end of a backward pass if an optimizer steps inside it.

Inside a pass no profiler may be started or stopped: after each node autograd restores the thread's state, including that of
the profiler, and the process would crash.
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
    """Does the latest given work once, when a call of `backward` returns.

    `torch.autograd.backward` is wrapped at the first `do`. The end of the pass that runs then is not noticed: the work is
    done after the next pass.
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
                self._returned()

        hide_from_dynamo(backward)
        torch.autograd.backward = backward

    def _returned(self) -> None:
        if self._work is None or is_running():  # Activation checkpointing runs one pass inside another.
            return
        work, self._work = self._work, None
        work()
