"""End a process together with its parent."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
    """Have this process receive the signal at the end of its parent (prctl(2)). Exit now if `parent` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        raise SystemExit(0)
