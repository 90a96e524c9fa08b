"""The steps of a running elastic job, a line each, in a log beside its Run that is begun anew when it gets large."""

from pathlib import Path

import msgspec

from esprof.errors import unreadable

_NAME = "live.jsonl"
_MOST_BYTES = 16 << 20


class LiveStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as rank 0 tells it."""

    step: int
    took_us: float
    busy_us: list[float]
    """Own computing of each rank, without waiting."""
    ests: list[int]
    """How many ESTs each rank ran."""
    version: int | None = None
    """Of the adopted plan."""
    twice: bool = False
    """Whether its turns were run twice, so that it is no measure."""


class Tail:
    """Reads what has come since the last look."""

    def __init__(self, run: Path) -> None:
        self._path = run / _NAME
        self._offset = 0

    def read(self) -> list[LiveStep]:
        """The steps that have come; what is no step is left out, half a line until it is whole. Raises InputError."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                raw = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self._path, error) from error
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [step for line in whole.splitlines() if (step := _step(line)) is not None]


def _step(line: bytes) -> LiveStep | None:
    try:
        return msgspec.json.decode(line, type=LiveStep)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
