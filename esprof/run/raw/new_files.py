"""Files of the recorder: private, never overwriting, and written completely or not at all."""

import errno
import os
import threading

_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MODE = 0o600


class NewFile:
    """A new file to append to. Raises FileExistsError if the path exists, even as a dangling link.

    A job may close this file's descriptor and open its own file under the same number. The methods detect this, leave that
    file unchanged and raise OSError.
    """

    def __init__(self, path: str) -> None:
        self.number = os.open(path, _NEW, _MODE)
        self._path = path
        self._identity = _identity(self.number)
        # Reentrant: a signal handler of the job may interrupt an append and append, too.
        self._appending = threading.RLock()

    @property
    def is_ours(self) -> bool:
        try:
            return _identity(self.number) == self._identity
        except OSError:
            return False

    def append(self, data: bytes) -> None:
        """Write all of `data`, or raise OSError and write nothing: a full disk may accept a fraction without an error."""
        with self._appending:
            self._check()
            try:
                self._append(data)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._path) from None

    def _append(self, data: bytes) -> None:
        before = os.fstat(self.number).st_size
        if os.write(self.number, data) < len(data):
            os.ftruncate(self.number, before)  # Half a row would corrupt the next one, which may still fit.
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
    """Create a file with the content `data`. Raises OSError, and leaves no file, on failure."""
    file = NewFile(path)
    try:
        file.append(data)
    except OSError:
        os.unlink(path)
        raise
    finally:
        file.close()


def touch(path: str) -> None:
    """Create an empty file unless it exists."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, _MODE))


def _identity(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino
