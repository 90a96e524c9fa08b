"""Compressed files, by their first bytes: gzip, zstd, xz, bzip2 and lz4."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
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


def decompressed(file: BinaryIO) -> Any:
    """Return `file`, read from its start, or the stream that decompresses it; either has `read(size)`."""
    head = file.read(_HEAD)
    file.seek(0)
    return next((opened(file) for begins, opened in _FORMATS if head.startswith(begins)), file)
