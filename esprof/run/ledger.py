"""The ledger of a Run: what what-ifs promised, and what came once the change was made, as a log that is only appended to.

A promise is written before anything is measured, so that none can be fitted to what came, and none that failed gets lost.
"""

import secrets
import time
from pathlib import Path

import msgspec

from esprof.core.types import Ns
from esprof.run import files
from esprof.run.lines import append_line, read_lines


class JobClass(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two jobs alike, as far as a prediction goes. What is not known is None."""

    backend: str | None
    """Of its process groups, such as `gloo`; None where it has none."""
    devices: str
    """`CPU`, or the names of the accelerators."""
    world_size: int
    gradients: str | None
    """What synchronises them: `DDP`, `FSDP`, or `collectives` of the job's own; None where nothing does."""

    def __str__(self) -> str:
        known = (self.gradients, self.backend, f"{self.world_size} × {self.devices}")
        return ", ".join(filter(None, known))


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean step, µs, with its 95 % interval; None where too little was measured to tell."""

    us: float
    low_us: float | None = None
    high_us: float | None = None


class ReplayPromise(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="promised"):
    """What replay said of a run, before the change was made. Its times are those of steps under the profiler."""

    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    time_ns: Ns = msgspec.field(default_factory=time.time_ns)
    spec: str
    terms: tuple[str, ...]
    """Kinds of its terms, such as `data[ready]`."""
    job: JobClass
    step_us: float
    """The mean step as it was recorded."""
    predicted_us: float
    low_us: float
    high_us: float
    saving_low_us: float
    saving_high_us: float
    known_error_pct: float | None
    """How far off replay is on the run itself."""
    unprofiled_step_us: float | None
    """The median step without profiler, as it was recorded."""
    note: str | None
    versions: dict[str, str]

    @property
    def shares(self) -> tuple[float, float, float]:
        """The step promised, and the ends of its interval, as shares of the step as it is: (predicted, low, high)."""
        saved = (self.step_us - self.predicted_us, self.saving_high_us, self.saving_low_us)
        predicted, low, high = (max(0.0, 1 - saving / self.step_us) for saving in saved)
        return predicted, low, high


class ObservedOutcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="verified"):
    """What came of a promise, whose `id` it has."""

    id: str
    time_ns: Ns = msgspec.field(default_factory=time.time_ns)
    spec: str
    terms: tuple[str, ...]
    job: JobClass
    by: str
    """What made the change: `verify`, or `test bed`."""
    repeats: int
    """Pairs that were measured."""
    before: Estimate
    predicted: Estimate
    observed: Estimate
    error_pct: float
    """Of the step predicted, in per cent of the one observed."""
    held: bool
    """Whether the step observed lies in the interval predicted."""
    versions: dict[str, str]


Line = ReplayPromise | ObservedOutcome

_LINE: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def append(run: Path, line: Line) -> None:
    """Add a line to the ledger of the Run directory `run`. Raises OutputError."""
    append_line(path_of(run), line)


def read(run: Path) -> tuple[Line, ...]:
    """The lines of a Run directory's ledger, oldest first; what is none, such as half a line, is left out. Raises InputError
    where the ledger cannot be read."""
    return read_lines(path_of(run), _LINE)


def path_of(run: Path) -> Path:
    return run / files.LEDGER
