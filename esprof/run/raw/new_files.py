"""The recorder's files: for the user alone, never in place of what is there, and written whole or with an error."""

import errno
import os
import threading

_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MODE = 0o600


class NewFile:
    """A file to append to. Raises FileExistsError where anything is there, if only a dead link.

    A job may close this file's descriptor and open a file of its own under the same number. The methods leave such a file
    alone, and raise OSError.
    """

    def __init__(self, path: str) -> None:
        self.number = os.open(path, _NEW, _MODE)
        self._path = path
        self._identity = _identity(self.number)
        # Reentrant, as a signal handler of the job may come here while its thread is here already.
        self._appending = threading.RLock()

    @property
    def is_ours(self) -> bool:
        try:
            return _identity(self.number) == self._identity
        except OSError:
            return False

    def append(self, data: bytes) -> None:
        """Write all of `data`, or none and raise OSError: a full disk may take a part of it without an error."""
        with self._appending:
            self._check()
            try:
                self._append(data)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._path) from None

    def _append(self, data: bytes) -> None:
        before = os.fstat(self.number).st_size
        if os.write(self.number, data) < len(data):
            os.ftruncate(self.number, before)  # Half a row would spoil the next one, which may still fit.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def empty(self) -> None:
        self._check()
        os.ftruncate(self.number, 0)

    def close(self) -> None:
        if self.is_ours:
            os.close(self.number)

    def _check(self) -> None:
        if not self.is_ours:
            raise OSError(errno.EBADF, "the job has closed the recorder's files")


def write_new(path: str, data: bytes) -> None:
    """Make a new file that holds `data`. Raises OSError, and leaves no file, where that fails."""
    file = NewFile(path)
    try:
        file.append(data)
    except OSError:
        os.unlink(path)
        raise
    finally:
        file.close()


def touch(path: str) -> None:
    """Make an empty file, unless there is a file already."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, _MODE))


def _identity(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino
