"""Counts that all processes of a host add to."""

import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path


class Tally:
    """Named counts in a file. What a process has added stays when it is killed."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """Counts begin at 0 if there is no file yet."""
        self._path = path
        self._names = tuple(names)
        self._format = f"{len(self._names)}q"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

    def add(self, **more: int) -> None:
        """Add to the counts named. Nothing is added once the file was removed."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            counts = self._counts(file)
            os.pwrite(file, struct.pack(self._format, *(counts[name] + more.get(name, 0) for name in self._names)), 0)
        finally:
            os.close(file)

    def read(self) -> dict[str, int]:
        """The counts by name. Raises OSError if the file was removed."""
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            return self._counts(file)
        finally:
            os.close(file)

    def _counts(self, file: int) -> dict[str, int]:
        stored = os.pread(file, struct.calcsize(self._format), 0)
        counts = struct.unpack(self._format, stored) if stored else [0] * len(self._names)
        return dict(zip(self._names, counts, strict=True))
