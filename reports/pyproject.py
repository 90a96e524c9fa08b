"""What a project says to esprof in its pyproject.toml: `[tool.esprof]`."""

import tomllib
from datetime import date
from pathlib import Path
from typing import Any

from esprof.analyzers.ignore import NOTHING, Ignores, parse
from esprof.core.errors import UsageError

_FILE = "pyproject.toml"
_KEYS = ("ignore",)
_UNREAD = "Mend the file, or leave it unread with --no-ignore."


def read_ignores() -> Ignores:
    """The findings that are ignored here today.

    They stand in the nearest pyproject.toml, from the current directory upwards, that has a table [tool.esprof]. Raises
    UsageError where a file on the way cannot be read, or says what makes no sense.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        table = _table(folder / _FILE)
        if table is not None:
            return parse(table.get("ignore", []), folder / _FILE, date.today())
    return NOTHING


def _table(path: Path) -> dict[str, Any] | None:
    """The table [tool.esprof] of a file; None where there is no such file, or no such table in it."""
    if not path.is_file():
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", path=path, remedy=_UNREAD) from error
    except ValueError as error:  # Neither TOML nor UTF-8: both errors are of this kind.
        raise UsageError(f"is not TOML: {error}", path=path, remedy=_UNREAD) from error
    tool = content.get("tool")
    table = tool.get("esprof") if isinstance(tool, dict) else None
    if table is None:
        return None
    unknown = [key for key in table if key not in _KEYS] if isinstance(table, dict) else ["tool.esprof"]
    if unknown:
        raise UsageError(
            f"[tool.esprof] has nothing called {unknown[0]!r}", path=path, remedy=f"Known: {', '.join(_KEYS)}."
        )
    return dict(table)
