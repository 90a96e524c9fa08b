"""What a file system tells: why it refused to write, whether a folder belongs to this user alone, and what is a file."""

import errno
import os
import stat
from pathlib import Path

from esprof.core.errors import InputError, unreadable

_MAX_GIVEN_BYTES = 64 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def refusal(error: OSError, path: str) -> str:
    """Return the reason for `error` on writing `path`, which need not exist; for a full disk, with its mount point."""
    reason = error.strerror or str(error)
    return f"{reason} (on the disk at {_mounted_at(path)})" if error.errno in _FULL else reason


def _mounted_at(path: str) -> str:
    above = os.path.realpath(path)
    while not os.path.ismount(above):
        above = os.path.dirname(above)
    return above


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; one that is created is for its owner only.

    In a folder that others write to, a pipe, a device or a link may have a file's name. Reading a pipe would block, a device
    need not end, and writing through a link would change a file elsewhere. Raises OSError for these.
    """
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= os.O_NOFOLLOW
    try:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link") from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def read_regular(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file. Raises OSError if it is none, or larger than `limit` bytes."""
    with open(open_regular(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes")
    return content


def read_given(path: Path, what: str) -> bytes:
    """Return the content of a file that a user names, which may be a pipe. Raises InputError if it cannot be read, or is too
    large for `what`, such as "a plan"."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_GIVEN_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(content) > _MAX_GIVEN_BYTES:
        raise InputError(f"is too large for {what}", path=path)
    return content


def read_end(path: str | Path, limit: int) -> tuple[int, bytes]:
    """Return the inode number and the last `limit` bytes of a regular file. Raises OSError if it is none."""
    with open(open_regular(path), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return os.fstat(file.fileno()).st_ino, file.read(limit)


def cache_of_user(name: str, base: str | None = None) -> Path | None:
    """The folder `name` of esprof's cache in `base`, by default in the user's cache folder; created if necessary.

    None if another user could write to it or replace it, or if it cannot be created.
    """
    base = base or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(base)) / "esprof" / name
    if not folder.is_absolute():  # There is no home folder, or a variable holds a relative path.
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        return folder if _is_private(folder) else None
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None


def _is_private(folder: Path) -> bool:
    """Whether only this user and root can write to `folder` or replace it."""
    here = folder.stat()
    if here.st_uid != os.getuid() or here.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    return all(_is_protected(parent.stat()) for parent in folder.parents)


def _is_protected(parent: os.stat_result) -> bool:
    """Whether no other user can rename this user's files in the folder `parent`."""
    if parent.st_uid not in (0, os.getuid()):
        return False
    if parent.st_mode & stat.S_ISVTX:  # As in /tmp: users can rename only their own files.
        return True
    group_writes = parent.st_mode & stat.S_IWGRP and parent.st_gid != os.getgid()
    return not (group_writes or parent.st_mode & stat.S_IWOTH)
