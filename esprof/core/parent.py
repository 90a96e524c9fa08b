"""Processes that are of no use without the one that has started them."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> None:
    """Have this process sent SIGTERM when the one that has started it ends, however it ends (prctl(2)); or end it now, where
    that was `parent`, which has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        raise SystemExit(0)
