"""What `esprof tune` tells of its rounds, a line each in the Run."""

from pathlib import Path

import msgspec

from esprof.errors import unreadable

_MOST_BYTES = 4 << 20


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round: what was tried, what was promised, and what came. Any of it may not be known."""

    round: int | None = None
    kind: str | None = None
    plan: str | None = None
    before_us: float | None = None
    predicted_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    measured_us: float | None = None
    gain_pct: float | None = None
    gain_low_pct: float | None = None
    gain_high_pct: float | None = None
    error_pct: float | None = None
    outcome: str | None = None
    why: str | None = None


def rounds_path(run: Path) -> Path:
    return run / "rounds.jsonl"


def read_rounds(path: Path) -> tuple[Round, ...]:
    """Oldest first; what is none, such as half a line, is left out. Raises InputError where the file cannot be read."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError as error:
        raise unreadable(path, error) from error
    return tuple(found for line in lines if (found := _round(line)) is not None)


def _round(line: bytes) -> Round | None:
    try:
        return msgspec.json.decode(line, type=Round)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
