"""An LMDB database of bounded size that the processes of a host share, however they start.

LMDB survives the death of a process at any time: a change is whole or not there, and locks of the dead are released.
"""

import os
import resource
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from esprof.core.errors import InputError, MissingDependencyError, UsageError
from esprof.core.processes import Patience
from esprof.data.living import Living

T = TypeVar("T")

MIN_BYTES = 1 << 20
"""Least size of a database, bytes."""

_SHARED_MEMORY = "/dev/shm"
_MAX_READERS = 1024
_SMALL_FILES_BYTES = 1 << 17
"""Upper bound of the size of LMDB's lock file for `_MAX_READERS` and of other small files in the folder."""
_PREFIX = "esprof-cache-"
"""Beginning of the names of temporary folders."""
_OWNER = 0
"""Number of the process that created a temporary folder, in its file of living processes."""
_NEW_S = 60.0
"""Age at which a temporary folder has an owner, if it lives."""
_ABOUT = b"about"
"""Key of the entry that says what the database is for."""


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a database is for."""

    items: int
    """Number of items of the data set."""
    use: str = "cache"
    """What the entries are."""


class SharedDatabase:
    """A database of at most `size` bytes in `folder`, or else in a temporary folder in memory.

    Processes that open the same folder share it. The folder must belong to this user. A temporary folder is removed with
    this object, by the process that created it; if that was killed, by the next that creates one.
    """

    def __init__(self, size: int, about: About, folder: str | os.PathLike[str] | None) -> None:
        """Raises UsageError if `size` is too small, InputError if `folder` belongs to another user, data set or use,
        MissingDependencyError without LMDB."""
        if size < MIN_BYTES:
            raise UsageError(f"a cache of {size} bytes is too small", remedy=f"Give it at least {MIN_BYTES} bytes.")
        lmdb()
        self.size = (size - _SMALL_FILES_BYTES) // resource.getpagesize() * resource.getpagesize()
        """Bytes of the database itself."""
        self.folder = _own_folder(folder) if folder is not None else _temporary()
        if folder is None:
            weakref.finalize(self, _remove, self.folder, os.getpid())
        self._check(about)

    def begin(self, *, write: bool = False) -> Any:
        """A transaction: a context that commits at its end unless an exception leaves it. Writers wait for each other."""
        return self._opened().begin(write=write, buffers=True)

    def change(self, make: Callable[[Any], T], *, patience_s: float = 0.0) -> T:
        """Let `make` change the database in a transaction, and return what it returns.

        LMDB keeps what a reader may still see, even of a killed one. So where there is no room, dead readers are released
        and `make` is called again. Live readers get `patience_s` to end. Raises MapFullError if there still is no room;
        then nothing has changed.
        """
        patience = Patience(patience_s)
        is_last = False
        while True:
            try:
                with self.begin(write=True) as transaction:
                    return make(transaction)
            except lmdb().MapFullError:
                if is_last:
                    raise
            self.release_dead_readers()
            is_last = patience.is_over
            if not is_last:
                patience.pause()

    @property
    def entries(self) -> int:
        """Number of entries, without the one that says what the database is for."""
        return int(self._opened().stat()["entries"]) - 1

    def release_dead_readers(self) -> None:
        """Let what killed processes were reading be written to again."""
        self._opened().reader_check()

    def _check(self, wanted: About) -> None:
        """Note what the database is for, or check it."""
        about = msgspec.json.encode(wanted)
        with self.begin(write=True) as transaction:
            if transaction.put(_ABOUT, about, overwrite=False):
                return
            known = transaction.get(_ABOUT)
            same = known == about
        if not same:
            raise InputError(
                "this cache holds the samples of another data set",
                path=self.folder,
                remedy="Remove it, or name another folder.",
            )

    def _opened(self) -> Any:
        """The database, opened once in each process: LMDB allows no more."""
        key = str(self.folder)
        if key not in _open:
            _open[key] = lmdb().open(
                key,
                map_size=self.size,
                max_readers=_MAX_READERS,
                sync=False,
                metasync=False,
                readahead=False,
                mode=0o600,
            )
            _open[key].reader_check()
        return _open[key]


_open: dict[str, Any] = {}
"""Database of each folder in this process."""


def _close_all() -> None:
    while _open:
        _open.popitem()[1].close()


# LMDB allows no use of a database that a parent process opened, and has one file open only once.
os.register_at_fork(after_in_child=_close_all)


def lmdb() -> Any:
    """The library. Raises MissingDependencyError."""
    try:
        import lmdb
    except ImportError as missing:
        raise MissingDependencyError("lmdb is not installed", remedy="pip install 'esprof[data]'") from missing
    return lmdb


def _own_folder(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder).absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise InputError("the folder belongs to another user", path=path, remedy="Name a folder of your own.")
    return path


def _temporary() -> Path:
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
    _remove_abandoned(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    _owners(folder).hold(_OWNER)
    return folder


def _remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders of processes that were killed: in memory, they would stay until the host restarts."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # It was removed meanwhile.
            found = folder.lstat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > _NEW_S:
                owners = _owners(folder)
                if not owners.is_held(_OWNER):
                    shutil.rmtree(folder, ignore_errors=True)
                owners.close()


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(KeyError):
            _open.pop(str(folder)).close()
        _owners(folder).release(_OWNER)
        _owners(folder).close()
        shutil.rmtree(folder, ignore_errors=True)


def _owners(folder: Path) -> Living:
    return Living(folder / "alive")
