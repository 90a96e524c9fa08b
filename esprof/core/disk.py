"""Explain why a file system refused to write; for a full disk, with its mount point."""

import errno
import os

_FULL = (errno.ENOSPC, errno.EDQUOT)


def refusal(error: OSError, path: str) -> str:
    """Return the reason for `error` on writing `path`, which need not exist."""
    reason = error.strerror or str(error)
    return f"{reason} (on the disk at {_mounted_at(path)})" if error.errno in _FULL else reason


def _mounted_at(path: str) -> str:
    above = os.path.realpath(path)
    while not os.path.ismount(above):
        above = os.path.dirname(above)
    return above
