"""The steps of a running elastic job, as they come: a line each, in a file of its Run directory."""

import os
from pathlib import Path

import msgspec

from esprof.core.errors import unreadable
from esprof.core.output import unwritable
from esprof.run import files

_MOST_BYTES = 8 << 20
"""The file is begun anew when it has become as large."""


class LiveStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step that is over."""

    step: int
    took_us: float
    """From the end of the step before."""
    busy_us: tuple[float, ...]
    """What each rank took until it had nothing to do but wait for gradients: its loader and its ESTs."""
    ests: tuple[int, ...]
    """How many ESTs each rank had."""
    updated_us: tuple[float, ...] = ()
    """What the optimizers' step before this one took on each rank: what is known of a rank that has no EST."""
    version: int | None = None
    """Of the plan that held; None before the first."""
    twice: bool = False
    """Whether its ESTs ran twice: it is no measure then."""


_STEP = msgspec.json.Decoder(LiveStep)


class Live:
    """Begins the file anew, so that nobody takes an older job's steps for this one's, and appends to it, in the job. Where
    that fails it is an OutputError, and nothing is appended any more."""

    def __init__(self, run: Path) -> None:
        self._path = run / files.LIVE
        self._file: int | None = None
        """None once writing has failed."""
        try:
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def note(self, step: LiveStep) -> None:
        if self._file is None:
            return
        try:
            if os.fstat(self._file).st_size > _MOST_BYTES:
                os.ftruncate(self._file, 0)
            os.write(self._file, msgspec.json.encode(step) + b"\n")
        except OSError as error:
            self.close()
            raise unwritable(self._path, error) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Tail:
    """Reads the file of a Run directory as it grows."""

    def __init__(self, run: Path) -> None:
        self._path = run / files.LIVE
        self._read = 0

    def read(self) -> list[LiveStep]:
        """The steps since the last call; at first all that the file holds. None of a file that is not there yet. What is no
        step, such as a line that is half written, is left out. Raises InputError where the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:  # It was begun anew.
                    self._read = 0
                file.seek(self._read)
                raw = file.read(2 * _MOST_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self._path, error) from error
        whole = raw[: raw.rfind(b"\n") + 1]
        self._read += len(whole)
        return [step for line in whole.splitlines() if (step := _step(line)) is not None]


def _step(line: bytes) -> LiveStep | None:
    try:
        return _STEP.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
