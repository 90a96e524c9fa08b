"""The history of an elastic job: what happened to it, as a log beside its Run that is only ever appended to."""

import time
from pathlib import Path
from typing import Literal

import msgspec

from esprof.core.types import Ns
from esprof.run import files
from esprof.run.lines import append_line, read_lines

What = Literal[
    "started",
    "scaled",
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


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What of a job a plan may change."""

    ests: tuple[tuple[int, ...], ...]
    """Those of each rank."""
    codec: str | None = None
    """None where the plan did not change it."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    phases_us: dict[str, float] = {}
    """What of the time without steps went into what, where the number of processes has changed."""
    was: Setting | None = None
    """Of a plan that is adopted or tried, what held before it: what a person goes back to."""
    reason: str = ""


_EVENT = msgspec.json.Decoder(JobEvent)


def append(run: Path, event: JobEvent) -> None:
    """Add an event to the log of the Run directory `run`. Raises OutputError."""
    append_line(run / files.HISTORY, event)


def read(run: Path) -> tuple[JobEvent, ...]:
    """The events of a Run directory, oldest first; what is no event, such as half a line, is left out. Raises InputError
    where the log cannot be read."""
    return read_lines(run / files.HISTORY, _EVENT)
