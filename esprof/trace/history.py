"""The history of an elastic job: what happened to it, as a log beside its Run that is only ever appended to."""

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from esprof.errors import unreadable
from esprof.output import unwritable
from esprof.types import Ns

What = Literal[
    "started",
    "trying",
    "adopted",
    "refused",
    "kept",
    "missed",
    "reverted",
    "checkpoint",
    "left",
    "accepted",
    "rejected",
    "rolled_back",
]
"""`kept`, `missed` and `reverted` say what became of a plan: `missed` is kept, and less than was promised. The last three
are a person's decisions on a plan, before the job has said anything of it."""

_NAME = "history.jsonl"
_MOST_BYTES = 16 << 20
"""What is read of a log at most: its end."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What of a job a plan may change."""

    ests: tuple[tuple[int, ...], ...]
    """Those of each rank."""
    codec: str | None = None
    """None where the plan did not change it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened, a line of the log."""

    what: What
    step: int
    """The step before which it happened."""
    time_ns: Ns = msgspec.field(default_factory=time.time_ns)
    """Since the Unix epoch."""
    plan: str | None = None
    """Id of the plan that this is about."""
    version: int | None = None
    before_us: float | None = None
    """Median step before the plan."""
    after_us: float | None = None
    """Median step with it."""
    promised_us: float | None = None
    gain_low_us: float | None = None
    """In a trial the 95 % interval of what a step is shorter by with the plan."""
    gain_high_us: float | None = None
    was: Setting | None = None
    """Of a plan that is adopted or tried, what held before it: what a person goes back to."""
    reason: str = ""


def append(run: Path, event: Event) -> None:
    """Add an event to the log of the Run directory `run`. Raises OutputError."""
    path, line = run / _NAME, msgspec.json.encode(event) + b"\n"
    try:
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # By a process that was killed, or a full disk.
            os.write(file, b"\n" + line if torn else line)
        finally:
            os.close(file)
    except OSError as error:
        raise unwritable(path, error) from error


def read(run: Path) -> tuple[Event, ...]:
    """The events of a Run directory, oldest first; what is no event, such as half a line, is left out. Raises InputError
    where the log cannot be read."""
    path = run / _NAME
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_BYTES))
            lines = file.read(_MOST_BYTES).splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable(path, error) from error
    return tuple(found for line in lines if (found := _event(line)) is not None)


def _event(line: bytes) -> Event | None:
    try:
        return msgspec.json.decode(line, type=Event)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
