"""Bytes by number, shared by the processes of a host: a store that takes entries until it is full."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from esprof.data.shared_database import About, SharedDatabase, lmdb

T = TypeVar("T")


class SharedStore:
    """Entries in a `SharedDatabase`. They are never replaced: a store that is full takes no more."""

    def __init__(self, size: int, about: About, folder: str | os.PathLike[str] | None, most: int | None = None) -> None:
        """The store takes at most `size` bytes, and at most `most` entries. Raises what `SharedDatabase` raises."""
        self._database = SharedDatabase(size, about, folder)
        self._most = most
        self.is_full = False
        """Whether an entry had no room."""

    @property
    def folder(self) -> Path:
        return self._database.folder

    def get(self, key: int, read: Callable[[memoryview], T]) -> T | None:
        """`read` of the entry of `key`, or None; the memory is valid during the call only."""
        try:
            with self._database.begin() as transaction:
                found = transaction.get(_key(key))
                return None if found is None else read(found)
        except lmdb().Error:  # Its folder was removed, by a rank that ended before this one.
            return None

    def put(self, key: int, data: bytes) -> bool:
        """Store `data` unless the store is full or its disk is; returns whether the entry is there now."""
        if self.is_full:
            return False

        def add(transaction: Any) -> bool:
            # Only one process writes at a time, so that the count is exact.
            has_room = self._most is None or len(self) < self._most
            if has_room:
                transaction.put(_key(key), data, overwrite=False)
            return has_room

        try:
            self.is_full = not self._database.change(add)
        except lmdb().Error:
            # It has no room left, or its disk has none. Trying again for each item would only cost time.
            self.is_full = True
        return not self.is_full

    def __len__(self) -> int:
        """Number of entries."""
        return self._database.entries


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")
