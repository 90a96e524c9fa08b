"""The ceiling on what one file may take once it is read: a small file can hold a very large table."""

import os

from esprof.core.errors import UsageError
from esprof.core.types import Bytes

DEFAULT: Bytes = 4 << 30


def memory_limit() -> Bytes:
    """Largest file, uncompressed, that esprof reads: ESPROF_MEMORY_LIMIT (bytes), or 4 GiB.

    Raises UsageError where ESPROF_MEMORY_LIMIT is no positive whole number.
    """
    text = os.environ.get("ESPROF_MEMORY_LIMIT", str(DEFAULT))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"ESPROF_MEMORY_LIMIT is {text!r}", remedy="Set it to a number of bytes, such as 8589934592.")
    return int(text)
