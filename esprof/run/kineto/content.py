"""The text of a file, plain or compressed, under the memory ceiling."""

import re
import zlib
from pathlib import Path

from esprof.core import readable
from esprof.core.errors import InputError, unreadable
from esprof.core.types import Bytes
from esprof.run.kineto.compressed import BROKEN_STREAM, COMPRESSED, GZIP, decompressed

_READ: Bytes = 1 << 18
"""Bytes that are read at a time."""
_GUNZIP: Bytes = 1 << 16
"""Compressed bytes that are decompressed at a time: they may grow a thousandfold."""
_ZEROS = re.compile(rb"\0*")


def content(path: Path, limit: Bytes) -> bytearray:
    """All of the file at `path`, decompressed. Raises InputError where it cannot be read or is larger than `limit`."""
    text = bytearray()
    try:
        with path.open("rb", buffering=0) as file:
            while len(text) <= limit and (piece := file.read(_READ)):
                text += piece
    except OSError as error:
        raise unreadable(path, error) from error
    if len(text) <= limit and text.startswith(GZIP):
        text = _gunzip(path, text, limit)
    elif text.startswith(COMPRESSED):
        text = _decompress(path, limit)
    if len(text) > limit:
        raise too_large(path, limit)
    return text


def too_large(path: Path, limit: Bytes) -> InputError:
    """What to raise when reading `path` would take more memory than `limit`."""
    return InputError(
        f"is larger than the memory limit of {readable.size(limit)} (uncompressed)",
        path=path,
        remedy="Record fewer steps a window, or raise ESPROF_MEMORY_LIMIT (bytes).",
    )


def _decompress(path: Path, limit: Bytes) -> bytearray:
    """Return the decompressed content of the file, at most a piece over `limit`."""
    text = bytearray()
    try:
        with path.open("rb") as file:
            stream = decompressed(file)
            while len(text) <= limit and (piece := stream.read(_READ)):
                text += piece
    except BROKEN_STREAM as error:
        raise InputError(f"is broken or truncated ({error})", path=path, remedy="Copy or record it again.") from error
    return text


def _gunzip(path: Path, raw: bytearray, limit: Bytes) -> bytearray:
    """Decompress `raw`, at most one byte over `limit`: what a bomb would expand to is never held."""
    text, at = bytearray(), 0
    try:
        while at < len(raw) and len(text) <= limit:
            at = _gunzip_member(raw, at, text, limit)
            padding = _ZEROS.match(raw, at)  # Tools that copy whole blocks pad the end with zeros.
            at = padding.end() if padding else at
    except EOFError as error:
        raise InputError("is a truncated gzip file", path=path, remedy="Copy or record it again.") from error
    except zlib.error as error:
        raise InputError(f"is a broken gzip file ({error})", path=path, remedy="Copy or record it again.") from error
    return text


def _gunzip_member(raw: bytearray, at: int, text: bytearray, limit: Bytes) -> int:
    """Append to `text` the content of the gzip member that begins at `at`, and return where it ends.

    Raises EOFError for a member without an end.
    """
    stream = zlib.decompressobj(wbits=31)
    while not stream.eof and len(text) <= limit:
        if at >= len(raw):
            raise EOFError
        text += stream.decompress(raw[at : at + _GUNZIP], limit + 1 - len(text))
        at += _GUNZIP
    return min(at, len(raw)) - len(stream.unused_data)
