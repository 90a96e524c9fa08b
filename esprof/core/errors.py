"""What can go wrong, and how a person is told: file, reason, remedy.

Library code raises these; only `esprof.cli.main` prints them and picks the exit code.
"""

from pathlib import Path

from esprof.core.text import printable

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_REGRESSION = 3

_MAX_CHARS_SHOWN = 2_000
"""Characters of a path or reason that are shown: a path may have 4096, a reason may quote what it refuses."""


class EsprofError(Exception):
    """Base of every error that esprof raises on purpose.

    `reason` says what is wrong, `path` where, `remedy` what to do about it.
    """

    exit_code = EXIT_ERROR

    def __init__(self, reason: str, *, path: str | Path | None = None, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.remedy = remedy

    def __str__(self) -> str:
        # Path and reason may hold names from a trace or a foreign folder: on one line, they cannot forge another message.
        where = f"{printable(str(self.path), _MAX_CHARS_SHOWN)}: " if self.path is not None else ""
        then = f"\n  {self.remedy}" if self.remedy else ""
        return f"{where}{printable(self.reason, _MAX_CHARS_SHOWN)}{then}"


class InputError(EsprofError):
    """A trace, Run or baseline that cannot be read or makes no sense."""


def unreadable(path: str | Path, error: OSError) -> InputError:
    """What to raise when the system refuses to open `path`."""
    reason = f"cannot be read: {error.strerror or error}"
    return InputError(reason, path=path, remedy="Check the name, and that you may read it.")


class OutputError(EsprofError):
    """A result that could not be written; nothing half-written stays behind."""


class UsageError(EsprofError):
    """A request that esprof cannot understand, such as an unknown what-if target."""

    exit_code = EXIT_USAGE


class MissingDependencyError(EsprofError):
    """A library that this verb needs is not installed here."""


class MismatchError(EsprofError):
    """Two things that must not be compared, such as runs on different hardware."""
