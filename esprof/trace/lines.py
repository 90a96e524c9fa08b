"""Files of lines that are only ever appended to, by whoever has something to add, beside a Run."""

import os
from pathlib import Path

from esprof.errors import unreadable
from esprof.output import unwritable

_MOST_BYTES = 16 << 20
"""What is read of a file at most: its end."""


def append(path: Path, line: bytes) -> None:
    """Add a line, without its end, to the file `path`. Raises OutputError."""
    line += b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # By a process that was killed, or a full disk.
            os.write(file, b"\n" + line if torn else line)
        finally:
            os.close(file)
    except OSError as error:
        raise unwritable(path, error) from error


def read(path: Path) -> list[bytes]:
    """The lines of a file, oldest first, half ones among them; none where there is no file. Raises InputError."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_BYTES))
            return file.read(_MOST_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(path, error) from error
