"""Lets a forked child of a rank end.

Kineto keeps a thread and, when a process exits, waits for it. A forked child has not got that thread, and would wait for
ever: whoever has profiled before a fork, by us or without us, sees the child hang.
"""

import ctypes
from contextlib import suppress


def leave_without_kineto() -> None:
    """In the child: at its exit flush C's streams, and leave before what was registered before the fork can run.

    Both are functions of glibc, since Python is gone by then. What ends the process keeps its exit status.
    """
    with suppress(AttributeError, OSError):  # Another libc, in which the child is as it would be without us.
        libc = ctypes.CDLL(None)
        # The last to be registered is the first to run.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
