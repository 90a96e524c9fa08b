"""Reads the parts of a run at the same time."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

_AT_ONCE = min(os.cpu_count() or 1, 8)
"""Parts that are read at the same time by default: each may take what the memory ceiling allows."""

T = TypeVar("T")


def run_all(executor: Executor | None, work: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """What `work` returns for each set of arguments, in order: by `executor`, or else by a few threads."""
    if executor is not None:
        return list(executor.map(work, *arguments))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(work, *arguments))
