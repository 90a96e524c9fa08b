"""A SQLite database, opened for reading only. Views and extensions of a foreign file are never run."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from esprof.core.errors import InputError
from esprof.core.text import printable
from esprof.core.types import Bytes
from esprof.run.kineto.content import too_large
from esprof.run.reading import memory_limit

HEAD = b"SQLite format 3\x00"
_BYTES_A_ROW: Bytes = 600
"""Memory that reading a row takes at most, about."""


class Database:
    """The tables of an open database, with the columns that each has."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})")]

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The rows of a table; None for columns that it lacks, and no row if the database lacks the table.

        Raises InputError for a table that is larger than the memory limit.
        """
        if table not in self.tables:
            return iter(())
        there = self.columns(table)
        picked = ", ".join(_quoted(name) if name in there else "NULL" for name in columns)
        (count,) = self._connection.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()
        if count * _BYTES_A_ROW > memory_limit():
            raise too_large(self.path, memory_limit())
        return iter(self._connection.execute(f"SELECT {picked} FROM {_quoted(table)}"))

    def texts(self, table: str, key: str, value: str) -> dict[int, str]:
        """Number -> text, from two columns of a table."""
        return {number: str(text) for number, text in self.rows(table, (key, value)) if isinstance(number, int)}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """Open a database for reading. Raises InputError where it is broken."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        try:
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            yield Database(path, connection)
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 decodes its own messages, which quote the file.
        reason = f"is a broken database: {printable(str(error))}"
        raise InputError(reason, path=path, remedy="Copy or export it again.") from error


def tables_of(path: Path) -> list[str]:
    """The tables of the file at `path`; none if it is no database."""
    try:
        with path.open("rb") as file:
            if file.read(len(HEAD)) != HEAD:
                return []
        with opened(path) as database:
            return database.tables
    except (OSError, InputError):  # Reading it will raise the error.
        return []
