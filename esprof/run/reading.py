"""Read several files in parallel, within a memory limit."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from esprof.core.errors import UsageError
from esprof.core.types import Bytes

DEFAULT_MEMORY_LIMIT: Bytes = 4 << 30
MAX_FILES_AT_ONCE = min(os.cpu_count() or 1, 8)
"""Default number of files read in parallel; the memory limit holds for each."""

ResultT = TypeVar("ResultT")


def memory_limit() -> Bytes:
    """Largest uncompressed size of a file that esprof reads, bytes: ESPROF_MEMORY_LIMIT, or 4 GiB. A small file can contain
    a very large table.

    Raises UsageError if ESPROF_MEMORY_LIMIT is no positive integer.
    """
    text = os.environ.get("ESPROF_MEMORY_LIMIT", str(DEFAULT_MEMORY_LIMIT))
    if not text.isdecimal() or not int(text):
        reason = f"ESPROF_MEMORY_LIMIT is {text!r}, which is no positive integer"
        raise UsageError(reason, remedy="Set it to a number of bytes, such as 8589934592.")
    return int(text)


def run_all(executor: Executor | None, work: Callable[..., ResultT], *arguments: Iterable[Any]) -> list[ResultT]:
    """Call `work` with each set of arguments in `executor`, by default a few threads; return the results in order."""
    if executor is not None:
        return list(executor.map(work, *arguments))
    with ThreadPoolExecutor(MAX_FILES_AT_ONCE) as threads:
        return list(threads.map(work, *arguments))
