"""The files that an answer is about, and the hash of their content."""

import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from esprof.run import files

MAX_FILES = 10_000
MAX_BYTES = 8 << 30
"""Larger inputs are not hashed: somebody named a folder that holds more than one run."""
_CHUNK = 16 << 20
_THREADS = min(os.cpu_count() or 1, 8)


class Stamp(NamedTuple):
    """A file as the file system describes it: a write changes at least one of these."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int


def stamps_of(sources: Sequence[str]) -> tuple[Stamp, ...] | None:
    """All files that reading `sources` (files, folders, patterns) may open. None if an answer about them may not be
    stored: a file is missing or no regular one, they are too many or too large, or a Run is not complete and may change."""
    try:
        found: list[Stamp] = []
        total = 0
        for path in _paths(sources):
            info = os.stat(path)
            total += info.st_size
            if not stat.S_ISREG(info.st_mode) or total > MAX_BYTES or len(found) == MAX_FILES:
                return None
            found.append(Stamp(path, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino))
        return tuple(found)
    except (OSError, ValueError, _IncompleteRunError):  # ValueError: a null byte in a name
        return None


def content_hash(stamps: Iterable[Stamp]) -> bytes | None:
    """Hash of names and bytes of the files, read in threads. None if one is unreadable."""
    whole = sha256()
    for path, size, *_ in stamps:
        whole.update(f"{path!r} {size}\n".encode())
    chunks = [(path, start) for path, size, *_ in stamps for start in range(0, size, _CHUNK)]
    try:
        with ThreadPoolExecutor(_THREADS) as pool:  # hashlib releases the GIL.
            for digest in pool.map(_hash_of_chunk, chunks):
                whole.update(digest)
    except OSError:
        return None
    return whole.digest()


class _IncompleteRunError(Exception):
    """A Run is being recorded, or was not finished."""


def _paths(sources: Sequence[str]) -> Iterator[str]:
    for source in sources:
        for match in [source] if os.path.exists(source) else sorted(glob.glob(source)) or [source]:
            yield from _files_in(match) if os.path.isdir(match) else _file_and_stacks(match)


def _files_in(folder: str) -> Iterator[str]:
    path = Path(folder)
    if not files.is_complete(path) and any(os.path.exists(path / mark) for mark in files.MARKS_OF_RUNS):
        raise _IncompleteRunError
    for here, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        folders.sort()
        yield from (os.path.join(here, name) for name in sorted(names))


def _file_and_stacks(file: str) -> Iterator[str]:
    """A named file; dumps of the Flight Recorder are read together with the stacks beside them."""
    yield file
    yield from sorted(map(str, Path(file).parent.glob(files.SERVER_STACKS)))


def _raise(error: OSError) -> None:
    raise error


def _hash_of_chunk(chunk: tuple[str, int]) -> bytes:
    path, start = chunk
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        return sha256(file.read(_CHUNK)).digest()
