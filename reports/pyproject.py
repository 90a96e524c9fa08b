"""Settings of a project: the table `[tool.esprof]` of its pyproject.toml."""

import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esprof.core.errors import UsageError

if TYPE_CHECKING:
    from esprof.analyzers.ignore import Ignores

_FILE = "pyproject.toml"
_KEYS = ("ignore",)
_UNREAD = "Correct the file, or skip it with --no-ignore."


@dataclass(frozen=True)
class IgnoreList:
    """A project's ignore list as written in `path`, and the day on which it was read.

    It is parsed on use only, since that loads all rules.
    """

    entries: object
    path: Path
    today: date

    def parsed(self) -> "Ignores":
        """Raises UsageError if an entry is invalid."""
        from esprof.analyzers.ignore import parse

        return parse(self.entries, self.path, self.today)


NO_LIST = IgnoreList([], Path(_FILE), date.min)


def read_ignores() -> "Ignores":
    """The ignore rules that are valid today. Raises UsageError as `read_ignore_list` and `parsed` do."""
    return read_ignore_list().parsed()


def read_ignore_list() -> IgnoreList:
    """The ignore list of the project.

    It is read from the nearest pyproject.toml with a table [tool.esprof], from the current directory upwards. Raises
    UsageError if a file on this path is unreadable or invalid.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        table = _table(folder / _FILE)
        if table is not None:
            return IgnoreList(table["ignore"], folder / _FILE, date.today()) if "ignore" in table else NO_LIST
    return NO_LIST


def _table(path: Path) -> dict[str, Any] | None:
    """The table [tool.esprof] of a file; None if the file or the table is missing."""
    if not path.is_file():
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", path=path, remedy=_UNREAD) from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, or thousands of brackets.
        raise UsageError(f"is not TOML: {error}", path=path, remedy=_UNREAD) from error
    tool = content.get("tool")
    table = tool.get("esprof") if isinstance(tool, dict) else None
    if table is None:
        return None
    unknown = [key for key in table if key not in _KEYS] if isinstance(table, dict) else ["tool.esprof"]
    if unknown:
        raise UsageError(
            f"[tool.esprof] has an unknown key {unknown[0]!r}", path=path, remedy=f"Known: {', '.join(_KEYS)}."
        )
    return dict(table)
