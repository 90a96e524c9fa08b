"""Exceptions of esprof, with file, reason and remedy. `esprof.cli.main` prints them and sets the exit code."""

from pathlib import Path

from esprof.core.text import printable

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_REGRESSION = 3

_MAX_CHARS_SHOWN = 2_000
"""Longest path or reason that is printed, in characters: a path may have 4096, a reason may quote its input."""


class EsprofError(Exception):
    """Base of all errors that esprof raises.

    `reason` is the problem, `path` the file concerned, `remedy` the action that solves it.
    """

    exit_code = EXIT_ERROR

    def __init__(self, reason: str, *, path: str | Path | None = None, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.remedy = remedy

    def __str__(self) -> str:
        # Path and reason may contain names from a trace: on one line they cannot forge another message.
        where = f"{printable(str(self.path), _MAX_CHARS_SHOWN)}: " if self.path is not None else ""
        then = f"\n  {self.remedy}" if self.remedy else ""
        return f"{where}{printable(self.reason, _MAX_CHARS_SHOWN)}{then}"


class InputError(EsprofError):
    """A trace, Run or baseline is unreadable or invalid. `rank` is the rank whose table it is, if it is one of a Run."""

    def __init__(
        self, reason: str, *, path: str | Path | None = None, remedy: str | None = None, rank: int | None = None
    ) -> None:
        super().__init__(reason, path=path, remedy=remedy)
        self.rank = rank


def unreadable(path: str | Path, error: OSError) -> InputError:
    """Return the error for a `path` that the system refuses to open."""
    reason = f"cannot be read: {error.strerror or error}"
    return InputError(reason, path=path, remedy="Check the name and the read permission.")


class OutputError(EsprofError):
    """A result could not be written. No incomplete file remains."""


class UsageError(EsprofError):
    """An invalid request, such as an unknown what-if target."""

    exit_code = EXIT_USAGE


class MissingDependencyError(EsprofError):
    """A library that the verb needs is not installed."""


class MismatchError(EsprofError):
    """Two inputs cannot be compared, such as runs on different hardware."""
