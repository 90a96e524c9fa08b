"""Lets a forked child of a rank end.

Kineto keeps a thread and, when a process exits, waits for it. A forked child does not have that thread and would wait for
ever: where a process has profiled before a fork, by the recorder or without it, the child hangs.
"""

import ctypes
from contextlib import suppress


def leave_without_kineto() -> None:
    """In the child: at its exit flush C's streams, and end before any handler that was registered before the fork runs.

    Both are functions of glibc, since Python is gone by then. The exit status stays as it is.
    """
    with suppress(AttributeError, OSError):  # With another libc the child behaves as it would without the recorder.
        libc = ctypes.CDLL(None)
        # The last to be registered is the first to run.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
