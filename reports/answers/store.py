"""Stored answers: a file each in a folder that no other user can write to."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from esprof.core.disk import cache_of_user
from esprof.core.errors import OutputError
from esprof.core.output import atomic_file

MAX_BYTES = 256 << 20
"""Of all answers together; those that were not asked for the longest time are removed first."""
_CHECKSUM_BYTES = sha256().digest_size


class Kept(msgspec.Struct, frozen=True):
    """What a command answered."""

    text: str
    exit_code: int = 0
    about: bytes = b""
    """JSON about an answer that is written to a file."""
    is_final: bool = True
    """Whether the same question would have the same answer; if not, it is not stored."""


class Store:
    """The answers in one folder. A file in it that is no whole answer to its key is ignored, and replaced."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def get(self, key: str) -> Kept | None:
        path = self._folder / key
        try:
            content = path.read_bytes()
            checksum, payload = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
            if checksum != _checksum(key, payload):
                return None
            kept = msgspec.msgpack.decode(payload, type=Kept)
        except (OSError, msgspec.DecodeError):
            return None
        with suppress(OSError):
            os.utime(path)
        return kept

    def put(self, key: str, kept: Kept) -> None:
        """Store an answer, if the disk allows it and it is small enough."""
        with suppress(OutputError, OSError, UnicodeEncodeError):  # UnicodeEncodeError: names of files may be no text.
            payload = msgspec.msgpack.encode(kept)
            if len(payload) > self._max_bytes // 2:
                return
            with atomic_file(self._folder / key, private=True) as file:
                file.write(_checksum(key, payload) + payload)
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        files = []
        for file in self._folder.iterdir():
            with suppress(FileNotFoundError):  # Another process removed it.
                info = file.stat()
                files.append((info.st_mtime_ns, info.st_size, file))
        excess = sum(size for _, size, _ in files) - self._max_bytes
        for _, size, file in sorted(files):
            if excess <= 0:
                return
            file.unlink(missing_ok=True)
            excess -= size


def user_store() -> Store | None:
    """The store of this user; None if there is no folder that is theirs alone."""
    folder = cache_of_user("answers")
    return Store(folder) if folder else None


def _checksum(key: str, payload: bytes) -> bytes:
    return sha256(key.encode() + payload).digest()
