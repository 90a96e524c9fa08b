"""The one place that writes files: whole or not at all, and never over somebody's work unasked."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from esprof.errors import OutputError


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing under a temporary name beside it; sync and rename when the block ends well.

    On any failure (disk full, exception in the block) the temporary file is removed and `path` is as it was before.
    Raises OutputError where the file system refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _refused(path, error) from error
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic_file(path) as file:
        file.write(data)


def claim(path: Path, *, force: bool) -> None:
    """Raise OutputError if `path` exists and may not be overwritten."""
    if path.exists() and not force:
        raise OutputError("already exists", path=path, remedy="Choose another name, or pass --force to overwrite it.")


def _refused(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"cannot be written: {reason}", path=path, remedy="Choose a folder with room and write access.")
