"""What a file system tells: why it refused to write, and whether a folder belongs to this user alone."""

import errno
import os
import stat
from pathlib import Path

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
