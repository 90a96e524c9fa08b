"""The one place that writes files: whole or not at all, and never over somebody's work unasked."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from esprof.errors import OutputError

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open `path` for writing under a temporary name beside it; sync and rename when the block ends well.

    On any failure (disk full, exception in the block) the temporary file is removed and `path` is as it was before.
    A device or pipe is written to as it is. A result is for whom the user's umask lets read it; a `private` file is for
    its owner alone, and so is its folder if it has to be made. Raises OutputError where the file system refuses.
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
            raise _refused(path, error) from error
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic_file(path) as file:
        file.write(data)


def claim(path: Path, *, force: bool) -> None:
    """Raise OutputError if `path` exists and may not be overwritten."""
    if os.path.lexists(path) and not _is_special(path) and not force:
        raise OutputError("already exists", path=path, remedy="Choose another name, or pass --force to overwrite it.")


def _is_special(path: Path) -> bool:
    """Whether `path` is a device, pipe or socket, such as /dev/null: a rename would put a plain file in its place."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE_FILE)


def _remove(temporary: Path) -> None:
    with suppress(OSError):
        # Where the folder itself refuses, there is nothing to remove.
        temporary.unlink()


def _refused(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"cannot be written: {reason}", path=path, remedy="Choose a folder with room and write access.")
