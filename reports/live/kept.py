"""What a file holds, read anew only when it has changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from esprof.core.errors import EsprofError

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The newest content of one file; in place of one that cannot be read, `missing`, and what is wrong."""

    def __init__(self, path: Path, read: Callable[[Path], Value], missing: Value) -> None:
        """`read` raises EsprofError where the file makes no sense; it is not called where there is none."""
        self._path, self._read, self._missing = path, read, missing
        self._seen: tuple[int, int, int] | None = None
        self.value = missing
        self.problem: str | None = None

    def refresh(self) -> bool:
        """Whether it has changed."""
        try:
            now = self._path.stat()
            seen = (now.st_mtime_ns, now.st_ino, now.st_size)
        except OSError:
            seen = None
        if seen == self._seen:
            return False
        self._seen, self.value, self.problem = seen, self._missing, None
        if seen is not None:
            try:
                self.value = self._read(self._path)
            except (EsprofError, RecursionError) as error:
                self.problem = " ".join(str(error).split())
        return True
