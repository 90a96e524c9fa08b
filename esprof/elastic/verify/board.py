"""A namespace of a job's store, on which ranks leave notes for each other."""

from collections.abc import Callable, Sequence
from typing import Any


class Board:
    """Notes by name. Errors of the connection are recorded in `is_gone` and not raised; then nothing is found."""

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name
        self.is_gone = False

    def set(self, key: str, value: str) -> None:
        self._do(lambda: self._store.set(f"{self._name}/{key}", value))

    def get(self, key: str) -> str | None:
        """The value; None where there is none."""
        return self.get_all([key])[0]

    def get_all(self, keys: Sequence[str]) -> list[str | None]:
        """The value of each key, None where there is none: by two requests if all are there."""
        names = [f"{self._name}/{key}" for key in keys]
        found: list[bytes | None] | None = self._do(lambda: self._read(names))
        return [value.decode() if value is not None else None for value in found or [None] * len(names)]

    def count(self, key: str, more: int = 1) -> int | None:
        """Add to a number, which starts at 0, and return it: one request."""
        found: int | None = self._do(lambda: self._store.add(f"{self._name}/{key}", more))
        return found

    def let_go(self) -> None:
        """Use the store no more."""
        self.is_gone, self._store = True, None

    def _read(self, names: Sequence[str]) -> list[bytes | None]:
        # A store waits for a key that is missing.
        if self._store.has_extended_api() and self._store.check(list(names)):
            return list(self._store.multi_get(list(names)))
        return [self._store.get(name) if self._store.check([name]) else None for name in names]

    def _do(self, what: Callable[[], Any]) -> Any:
        if self.is_gone:
            return None
        try:
            return what()
        except RuntimeError:  # c10d's errors of the connection are of this type.
            self.is_gone = True
            return None
