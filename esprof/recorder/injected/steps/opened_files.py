"""List the data files that this process opens for reading, so that their storage can be measured."""

import os
import sys
from typing import Any

from ....run.raw import names
from ....run.raw.new_files import NewFile

_MAX_FILES = 256
_FOREIGN_FOLDERS = ("/proc/", "/sys/", "/dev/", "/usr/", "/etc/", "/tmp/torchelastic")
_CODE_SUFFIXES = (".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link")


class OpenedFiles:
    """Lists the first opened files in `raw`. Python's audit events report every `open` until the end of the process."""

    def __init__(self, raw: str) -> None:
        self._raw = raw
        self._files: dict[str, None] = {}
        self._list: NewFile | None = None
        self._pid = 0
        self._on = True

    def install(self) -> None:
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._on:
            return
        path, _, flags = arguments
        if not isinstance(path, str) or not isinstance(flags, int) or flags & (os.O_WRONLY | os.O_RDWR):
            return
        if (
            path.startswith((self._raw, sys.prefix, sys.base_prefix, *_FOREIGN_FOLDERS))
            or path.endswith(_CODE_SUFFIXES)
            or "\n" in path
        ):
            return
        try:
            self._note(os.path.abspath(path))
        except (OSError, RuntimeError, UnicodeError):
            self._on = False

    def _note(self, path: str) -> None:
        if self._pid != os.getpid():  # A forked worker has a list of its own.
            self._files, self._list, self._pid = {}, None, os.getpid()
        if path in self._files or len(self._files) >= _MAX_FILES:
            return
        self._files[path] = None
        if self._list is None:
            self._list = NewFile(os.path.join(self._raw, names.opened(os.getpid())))
        self._list.append(path.encode(errors="surrogateescape") + b"\n")
