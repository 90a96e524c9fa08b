"""Bytes by key, shared by the processes of a host: an LMDB database that takes entries until it is full."""

import os
import resource
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from esprof.core.errors import InputError, MissingDependencyError, UsageError

T = TypeVar("T")

MIN_BYTES = 1 << 20
"""Least size of a store, bytes."""

_SHARED_MEMORY = "/dev/shm"
_MAX_READERS = 1024
_LOCK_BYTES = 1 << 17
"""Upper bound of the size of LMDB's lock file for `_MAX_READERS`."""
_ABOUT = b"about"
"""Key of the entry that says what the store is for; keys of entries are numbers."""


class About(msgspec.Struct, frozen=True):
    """What a store is for."""

    items: int
    """Number of items of the data set."""


class SharedStore:
    """Entries of at most `size` bytes in total, in `folder`, or else in a temporary folder in memory.

    Processes that open the same folder share the entries. The folder must belong to this user. Entries are never replaced:
    a store that is full takes no more. A temporary folder is removed with the store, by the process that created it.
    """

    def __init__(self, size: int, about: About, folder: str | os.PathLike[str] | None) -> None:
        """Raises UsageError if `size` is too small, InputError if `folder` belongs to another user or data set,
        MissingDependencyError without LMDB."""
        if size < MIN_BYTES:
            raise UsageError(f"a cache of {size} bytes is too small", remedy=f"Give it at least {MIN_BYTES} bytes.")
        _lmdb()
        self._size = (size - _LOCK_BYTES) // resource.getpagesize() * resource.getpagesize()
        self._about = about
        self.folder = _own_folder(folder) if folder is not None else _temporary()
        if folder is None:
            weakref.finalize(self, _remove, self.folder, os.getpid())
        self.is_full = False
        """Whether an entry had no room."""
        self._check()

    def get(self, key: int, read: Callable[[memoryview], T]) -> T | None:
        """`read` of the entry of `key`, or None; the memory is valid during the call only."""
        with self._database().begin(buffers=True) as transaction:
            found = transaction.get(_key(key))
            return None if found is None else read(found)

    def put(self, key: int, data: bytes) -> bool:
        """Store `data` unless the store is full or its disk is; returns whether the entry is there now."""
        if self.is_full:
            return False
        try:
            with self._database().begin(write=True) as transaction:
                transaction.put(_key(key), data, overwrite=False)
        except _lmdb().Error:
            # It has no room left, or its disk has none. Trying again for each item would only cost time.
            self.is_full = True
        return not self.is_full

    def __len__(self) -> int:
        """Number of entries."""
        return int(self._database().stat()["entries"]) - 1

    def _check(self) -> None:
        """Note what the store is for, or check it."""
        about = msgspec.json.encode(self._about)
        with self._database().begin(write=True) as transaction:
            if transaction.put(_ABOUT, about, overwrite=False):
                return
            known = transaction.get(_ABOUT)
        if known != about:
            raise InputError(
                "this cache holds the samples of another data set",
                path=self.folder,
                remedy="Remove it, or name another folder.",
            )

    def _database(self) -> Any:
        """The database, opened once in each process: LMDB allows no more."""
        key = str(self.folder)
        if key not in _opened:
            _opened[key] = _lmdb().open(
                str(self.folder),
                map_size=self._size,
                max_readers=_MAX_READERS,
                sync=False,
                metasync=False,
                readahead=False,
                mode=0o600,
            )
            _opened[key].reader_check()  # slots of killed processes
        return _opened[key]


_opened: dict[str, Any] = {}
"""Database of each folder in this process."""


def _close_all() -> None:
    while _opened:
        _opened.popitem()[1].close()


# LMDB allows no use of a database that a parent process opened, and has one file open only once.
os.register_at_fork(after_in_child=_close_all)


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError as missing:
        raise MissingDependencyError("lmdb is not installed", remedy="pip install 'esprof[data]'") from missing
    return lmdb


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _own_folder(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder).absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise InputError("the folder belongs to another user", path=path, remedy="Name a folder of your own.")
    return path


def _temporary() -> Path:
    memory = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="esprof-cache-", dir=memory))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(KeyError):
            _opened.pop(str(folder)).close()
        shutil.rmtree(folder, ignore_errors=True)
