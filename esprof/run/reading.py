"""How files are read: several at the same time, and none that takes more memory than allowed."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from esprof.core.errors import UsageError
from esprof.core.types import Bytes

DEFAULT_MEMORY_LIMIT: Bytes = 4 << 30
MAX_FILES_AT_ONCE = min(os.cpu_count() or 1, 8)
"""Files that are read at the same time by default: each may take what the memory limit allows."""

ResultT = TypeVar("ResultT")


def memory_limit() -> Bytes:
    """Largest file, uncompressed, that esprof reads: ESPROF_MEMORY_LIMIT (bytes), or 4 GiB. A small file can hold a very
    large table.

    Raises UsageError where ESPROF_MEMORY_LIMIT is no positive whole number.
    """
    text = os.environ.get("ESPROF_MEMORY_LIMIT", str(DEFAULT_MEMORY_LIMIT))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"ESPROF_MEMORY_LIMIT is {text!r}", remedy="Set it to a number of bytes, such as 8589934592.")
    return int(text)


def run_all(executor: Executor | None, work: Callable[..., ResultT], *arguments: Iterable[Any]) -> list[ResultT]:
    """What `work` returns for each set of arguments, in order: by `executor`, or else by a few threads."""
    if executor is not None:
        return list(executor.map(work, *arguments))
    with ThreadPoolExecutor(MAX_FILES_AT_ONCE) as threads:
        return list(threads.map(work, *arguments))
