"""Files of the kernel that count what threads do, kept open."""

import os
from contextlib import suppress


def opened(path: str) -> int | None:
    """Open a file for reading; None if that fails."""
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def opened_schedule(thread: int) -> int | None:
    """Open the scheduling statistics of a thread of this process, by its native id; None if that fails."""
    return opened(f"/proc/self/task/{thread}/schedstat")


def ready_ns(schedule: int) -> int:
    """How long the thread of these statistics has been ready while other threads had the CPU, ns."""
    return int(os.pread(schedule, 64, 0).split()[1])
