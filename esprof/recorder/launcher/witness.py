"""Finds out whether a signal was sent to this process alone, or to its whole process group.

A signal does not show that. A second process in the group, which blocks signals, retains a pending one if it was sent to the
group.
"""

import os
import signal
from contextlib import suppress

from esprof.core.processes import end_with_parent


class Witness:
    """A process that retains signals. The caller has blocked those that it asks about."""

    def __init__(self) -> None:
        self._pid = _waiting_process()

    def saw(self, number: int) -> bool:
        """Whether the signal was sent to the group; False if unknown. It can be asked about once for each signal."""
        try:
            with open(f"/proc/{self._pid}/status") as status:
                pending = next(line for line in status if line.startswith("ShdPnd:"))
        except (OSError, StopIteration):
            return False
        if not int(pending.split()[1], 16) >> (number - 1) & 1:
            return False
        self.close()
        self._pid = _waiting_process()
        return True

    def close(self) -> None:
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _waiting_process() -> int:
    """Fork a process that does nothing until it is killed, at the latest with this process."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        end_with_parent(parent, signal.SIGKILL)
        while True:
            signal.pause()
    finally:
        os._exit(0)
