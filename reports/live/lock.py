"""Lets only one process serve a Run, by a lock on a file in it. The system releases the lock when the process ends."""

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from esprof.core.disk import open_regular
from esprof.core.errors import EsprofError
from esprof.core.output import unwritable
from esprof.core.types import NOT_DECODED
from esprof.run import files

_MAX_BYTES = 4096


class _Holder(msgspec.Struct, frozen=True):
    """The process that holds the lock."""

    address: str
    pid: int
    host: str


class Lock:
    """The lock of one Run, held until the `with` block or the process ends."""

    def __init__(self, run: Path) -> None:
        """Raises EsprofError if another process holds the lock, OutputError if its file cannot be created."""
        path = run / files.SERVE_LOCK
        try:
            self._file = open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # The address of an earlier server is outdated.
                os.truncate(self._file, 0)
        except BlockingIOError as error:
            held = self._held_by()
            os.close(self._file)
            raise EsprofError(
                f"is served already{held}", path=run, remedy="Open that page, or end that process first."
            ) from error
        except OSError as error:
            os.close(self._file)
            raise unwritable(path, error) from error

    def publish(self, address: str) -> None:
        """Write the address of the page to the lock file, for the error message of other servers. A full disk is ignored."""
        holder = _Holder(address, os.getpid(), socket.gethostname())
        with suppress(OSError):
            os.pwrite(self._file, msgspec.json.encode(holder), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.truncate(self._file, 0)
        os.close(self._file)

    def _held_by(self) -> str:
        try:
            holder = msgspec.json.decode(os.pread(self._file, _MAX_BYTES, 0), type=_Holder)
        except (OSError, *NOT_DECODED):
            return ""
        return f" at {holder.address} (process {holder.pid} on {holder.host})"
