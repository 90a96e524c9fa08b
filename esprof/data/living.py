"""Which processes are alive: each holds a lock on a byte of a file, which the kernel releases when the process dies.

Process numbers would not do: they are used again, and containers that share memory do not share them. The numbers here are
chosen by the caller, who uses none twice.
"""

import fcntl
import os
from pathlib import Path


class Living:
    """The numbers that live processes hold, in the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def hold(self, number: int) -> None:
        """Hold `number` until `release`, or until this process ends."""
        mine = self._mine()
        fcntl.lockf(mine.file, fcntl.LOCK_EX, 1, number)
        mine.numbers.add(number)

    def release(self, number: int) -> None:
        mine = self._mine()
        mine.numbers.discard(number)
        fcntl.lockf(mine.file, fcntl.LOCK_UN, 1, number)

    def is_held(self, number: int) -> bool:
        """Whether a live process holds `number`. Two processes that ask at the same time may both hear yes."""
        mine = self._mine()
        if number in mine.numbers:  # A process is never refused a lock of its own.
            return True
        try:
            fcntl.lockf(mine.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError:
            return True
        fcntl.lockf(mine.file, fcntl.LOCK_UN, 1, number)
        return False

    def close(self) -> None:
        """Close the file, unless this process holds a number."""
        if not self._mine().numbers:
            os.close(_held.pop(self._path).file)

    def _mine(self) -> "_Held":
        if self._path not in _held:
            _held[self._path] = _Held(self._path)
        return _held[self._path]


class _Held:
    """This process's locks on a file."""

    def __init__(self, path: str) -> None:
        # Opened once: closing any descriptor of the file would release all locks of the process.
        self.file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self.numbers: set[int] = set()


_held: dict[str, _Held] = {}


def _forget() -> None:
    """A forked process has no locks."""
    while _held:
        os.close(_held.popitem()[1].file)


os.register_at_fork(after_in_child=_forget)
