"""Compressed files, by their first bytes: gzip, zstd, xz, bzip2 and lz4."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from esprof.core.types import Bytes

_HEAD: Bytes = 10

GZIP = b"\x1f\x8b"
"""First bytes of gzip."""

_FORMATS: tuple[tuple[bytes, Callable[[BinaryIO], Any]], ...] = (
    (GZIP, lambda file: gzip.GzipFile(fileobj=file)),
    (b"\x28\xb5\x2f\xfd", lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"BZh", bz2.BZ2File),
    (b"\x04\x22\x4d\x18", lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "lz4")),
)

COMPRESSED = tuple(begins for begins, _ in _FORMATS)
"""First bytes of all formats."""

BROKEN_STREAM = (EOFError, zlib.error, lzma.LZMAError, OSError, pa.ArrowException)
"""What reading a broken compressed file raises."""


def head(path: Path, size: Bytes) -> bytes:
    """The first bytes of the content of a file, compressed or not; none if it is broken, as reading it will show."""
    try:
        with path.open("rb") as file:
            return bytes(decompressed(file).read(size))
    except BROKEN_STREAM:
        return b""


def decompressed(file: BinaryIO) -> Any:
    """Return `file`, read from its start, or the stream that decompresses it; either has `read(size)`."""
    begins = file.read(_HEAD)
    file.seek(0)
    return next((opened(file) for first, opened in _FORMATS if begins.startswith(first)), file)
