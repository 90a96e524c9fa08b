"""Why a file system refused to write, in words; of a full disk, which one it is."""

import errno
import os

_FULL = (errno.ENOSPC, errno.EDQUOT)


def refusal(error: OSError, path: str) -> str:
    """What the system said when `path`, which need not be there, was to be written."""
    reason = error.strerror or str(error)
    return f"{reason} (on the disk at {_mounted_at(path)})" if error.errno in _FULL else reason


def _mounted_at(path: str) -> str:
    above = os.path.realpath(path)
    while not os.path.ismount(above):
        above = os.path.dirname(above)
    return above
