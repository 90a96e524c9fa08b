"""Refuses collectives of the script within an EST step: ranks with another number of ESTs would hang."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from esprof.core.assignment import Est
from esprof.core.errors import UsageError

_CALLS = (
    "allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "_allgather_base", "all_gather_single", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "broadcast", "gather", "scatter",
    "barrier", "monitored_barrier", "send", "recv", "recv_anysource",
)  # fmt: skip
"""Collective methods of a process group, in any version of torch."""

_FUNCTIONS = (
    "all_reduce", "all_gather_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single",
    "all_to_all_single", "broadcast", "permute_tensor", "all_reduce_coalesced", "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
)  # fmt: skip
"""Of `torch.distributed._functional_collectives`, in any torch."""


class _EstStep:
    est: Est | None = None
    """The running EST of this process."""
    thread: int | None = None


_exempt = threading.local()


@contextmanager
def est_step(est: Est) -> Iterator[None]:
    """Refuse the script's own collectives while the block lasts, in this thread and in those of the backward pass."""
    if dist.is_available():
        _watch()
    _EstStep.est, _EstStep.thread = est, threading.get_ident()
    try:
        yield
    finally:
        _EstStep.est = None


@contextmanager
def own() -> Iterator[None]:
    """Allow collectives in this thread: they are the runtime's."""
    before, _exempt.now = getattr(_exempt, "now", False), True
    try:
        yield
    finally:
        _exempt.now = before


@functools.cache
def _watch() -> None:
    """Patch the methods of all process groups once, and the functional collectives, which do not use them."""
    for name in _CALLS:
        method = getattr(dist.ProcessGroup, name, None)
        if method is not None:
            setattr(dist.ProcessGroup, name, _refusing(name, method))
    for name, function in [(name, getattr(functional, name, None)) for name in _FUNCTIONS]:
        if function is not None:
            guarded = _refusing(name, function)
            for module in list(sys.modules.values()):
                if isinstance(module, ModuleType) and vars(module).get(name) is function:
                    setattr(module, name, guarded)


def _refusing(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if _EstStep.est is not None and not getattr(_exempt, "now", False) and _is_in_est_step():
            raise UsageError(
                f"a collective ({name}) was called within the step of EST {_EstStep.est}",
                remedy="Call it between two steps: ranks with fewer ESTs would not make the call, and this rank would wait.",
            )
        return method(*arguments, **options)

    return call


def _is_in_est_step() -> bool:
    """Whether this thread computes the EST step: threads not started by Python are those of the backward pass."""
    return threading.get_ident() == _EstStep.thread or isinstance(threading.current_thread(), threading._DummyThread)
