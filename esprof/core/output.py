"""Write files completely or not at all, and never overwrite without permission. All other modules write through this one."""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from esprof.core.disk import open_regular, refusal
from esprof.core.errors import OutputError
from esprof.core.processes import Patience

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT
_PATIENCE_S = 0.5
"""Longest wait for another process that appends to the same log: it may be stopped."""


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path` for writing; sync it and rename it to `path` at the end of the block.

    On any failure (disk full, exception in the block) the temporary file is removed and `path` is unchanged. A device or
    pipe is written directly. The umask determines who may read the file; a `private` file, and its folder if it is created,
    are for their owner only. Raises OutputError if the file system refuses.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        if _is_special(path):
            with path.open("wb") as file:
                yield file
            return
        path.parent.mkdir(_PRIVATE_FOLDER if private else 0o777, parents=True, exist_ok=True)
        with open(temporary, "xb", opener=_open_private if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


@contextmanager
def atomic_folder(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary folder next to `path` that takes its place at the end of the block.

    On any failure it is removed and `path` is unchanged. A `private` one is for its owner only. Raises OutputError if the
    file system refuses.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(_PRIVATE_FOLDER if private else 0o777, parents=True)
        yield temporary
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, completely or not at all. Raises OutputError."""
    with atomic_file(path) as file:
        file.write(data)


def claim(path: Path, *, force: bool) -> None:
    """Raise OutputError if `path` exists and may not be overwritten, or if its folder is not writable.

    This writes nothing, so a full disk is detected only later.
    """
    try:
        os.lstat(path)
        if not (force or _is_special(path)):
            remedy = "Choose another name, or pass --force to overwrite it."
            raise OutputError("already exists", path=path, remedy=remedy)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unwritable(path, error) from error
    if not _is_special(path):
        _refuse_closed(path)


def _refuse_closed(path: Path) -> None:
    """Raise OutputError if the folder of `path`, or its nearest existing parent, is not writable."""
    folder = next(above for above in path.absolute().parents if os.path.exists(above))
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        number = errno.EROFS if is_read_only else errno.EACCES
        raise unwritable(path, OSError(number, os.strerror(number)))


def _is_special(path: Path) -> bool:
    """Whether `path` is a device, pipe or socket, such as /dev/null: a rename would replace it by a regular file."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE_FILE)


def _remove(temporary: Path) -> None:
    with suppress(OSError):
        # The folder may not be writable; then there is nothing to remove.
        temporary.unlink()


def unwritable(path: Path, error: OSError) -> OutputError:
    """Return the error for a `path` that the system refuses to write."""
    reason = f"cannot be written: {refusal(error, str(path))}"
    return OutputError(reason, path=path, remedy="Choose a writable folder with free space.")


def append_line(path: Path, line: bytes, *, older: Path, max_bytes: int) -> None:
    """Append a line to a log; create the log and its folder, for their owner only, if necessary.

    A log above `max_bytes` first becomes the file `older`, in place of the one before. Processes take turns: on NFS, appends
    of several hosts would overwrite each other (`open(2)`, O_APPEND). Raises OutputError.
    """
    try:
        path.parent.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
        file = open_regular(path, _APPEND)
        if _has_turn(file) and os.fstat(file).st_size > max_bytes:
            file = _rotated(file, path, older)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # By a process that was killed, or a full disk.
            os.write(file, b"\n" + line + b"\n" if torn else line + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        raise unwritable(path, error) from error


def _has_turn(file: int) -> bool:
    """Lock an open log; False where its file system has no locks, or another process holds it for long."""
    patience = Patience(_PATIENCE_S)
    while not patience.is_over:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            patience.pause()
        except OSError:
            return False
        else:
            return True
    return False


def _rotated(file: int, path: Path, older: Path) -> int:
    """Rename the open and locked log `file`, and open a new one in its place; the same where that cannot be done now."""
    try:
        if os.path.samestat(os.fstat(file), os.stat(path)):  # Otherwise another process has just done it.
            path.replace(older)
        new = open_regular(path, _APPEND)
    except OSError:
        return file
    _has_turn(new)
    os.close(file)
    return new
