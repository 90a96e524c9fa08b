"""Logs of a Run that are only ever appended to: a line of JSON for each thing that happened."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from esprof.core.errors import unreadable
from esprof.core.output import unwritable

_MOST_BYTES = 16 << 20
"""What is read of a log at most: its end."""

_Line = TypeVar("_Line")


def append_line(path: Path, line: msgspec.Struct) -> None:
    """Add a line to the log, which is made where it is not there, as is its folder. Raises OutputError."""
    written = msgspec.json.encode(line) + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # By a process that was killed, or a full disk.
            os.write(file, b"\n" + written if torn else written)
        finally:
            os.close(file)
    except OSError as error:
        raise unwritable(path, error) from error


def read_lines(path: Path, decoder: msgspec.json.Decoder[_Line]) -> tuple[_Line, ...]:
    """The lines of a log, oldest first; what is no such line, such as half of one, is left out. None of a log that is not
    there. Raises InputError where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_BYTES))
            lines = file.read(_MOST_BYTES).splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable(path, error) from error
    return tuple(found for line in lines if (found := _decoded(line, decoder)) is not None)


def _decoded(line: bytes, decoder: msgspec.json.Decoder[_Line]) -> _Line | None:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
