"""Request the stacks of a DataLoader worker from the process that waits for it.

In a worker, Python's faulthandler writes the stacks at a signal: this costs nothing until it is requested, needs no thread
in the worker, and works while native code holds the GIL. The stacks go to a file in memory, which the requesting process
finds among the worker's open files. This works on Linux only; elsewhere there are no stacks.
"""

import faulthandler
import os
import signal
import time
from contextlib import suppress

_NAME = "esprof-stack"
_LINK = f"/memfd:{_NAME} (deleted)"
_MAX_WAIT_FOR_STACK_S, _POLL_STACK_S = 0.5, 0.02
_BEGINS = b"(most recent call first):"


def _signal() -> int:
    """A real-time signal in the middle of the range: few programs use these signals, and those start at the ends."""
    return int(signal.SIGRTMAX) - 7


def listen() -> None:
    """In a worker: write all stacks at the signal. Does nothing if the signal is already handled or ignored."""
    if not hasattr(os, "memfd_create") or _is_set("SigCgt", "self") or _is_set("SigIgn", "self"):
        return
    faulthandler.register(_signal(), file=os.memfd_create(_NAME), all_threads=True, chain=False)


def dump_of(pid: int) -> str | None:
    """Stacks of the worker `pid` in the format of faulthandler; None if it has no handler, or does not answer within half a
    second."""
    with suppress(OSError):
        path = _file_of(pid)
        # The signal would end a process that does not catch it.
        if path is None or not _is_set("SigCgt", str(pid)):
            return None
        with open(path, "rb") as file:
            before = file.seek(0, os.SEEK_END)
            os.kill(pid, _signal())
            deadline, text = time.monotonic() + _MAX_WAIT_FOR_STACK_S, b""
            while time.monotonic() < deadline:
                time.sleep(_POLL_STACK_S)
                file.seek(before)
                seen, text = text, file.read()
                if _BEGINS in text and text == seen:
                    return text.decode(errors="replace")
    return None


def state_of(pid: int) -> str | None:
    """The letter that Linux gives the state of a process: S sleeps, D waits for a device, T was stopped; None if unknown."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return None


def _file_of(pid: int) -> str | None:
    """The path of the file in memory that the worker `pid` writes its stacks to."""
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with suppress(OSError):
            if os.readlink(f"{folder}/{name}") == _LINK:
                return f"{folder}/{name}"
    return None


def _is_set(mask: str, pid: str) -> bool:
    """Whether our signal is in the `mask` of a process: SigCgt of those it catches, SigIgn of those it ignores."""
    with open(f"/proc/{pid}/status") as file:
        found = next(line for line in file if line.startswith(f"{mask}:"))
    return bool(int(found.split()[1], 16) >> (_signal() - 1) & 1)
