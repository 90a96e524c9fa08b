"""What a process notes down: JSON lines, each written at once, so that a killed process loses nothing it had noted."""

import json
import os
from collections import deque

_MAX_WAITING = 10_000


class Log:
    """An append-only file of JSON lines, or, until `open`, a bounded queue of them.

    It belongs to the process that opened it: what a forked child writes is dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._file: int | None = None
        self._pid = 0

    def open(self, path: str) -> None:
        """Claim `path` for this process and write what waits. Raises FileExistsError where another one was first."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        self._pid = os.getpid()
        for line in self._waiting:
            os.write(self._file, line)
        self._waiting.clear()

    @property
    def mine(self) -> bool:
        """Whether this very process has opened the log."""
        return self._file is not None and self._pid == os.getpid()

    def write(self, kind: str, **row: object) -> None:
        line = encode(kind, **row)
        if self._file is None:
            self._waiting.append(line)
        elif self._pid == os.getpid():
            os.write(self._file, line)


def encode(kind: str, **row: object) -> bytes:
    return json.dumps({"kind": kind} | row).encode() + b"\n"
