"""The logs of a Run, each a file of JSON lines that is appended to and never changed: the history and the rounds of an
elastic job, the ledger of what-ifs, and the steps of a job that still runs.

`HISTORY.append(run, event)` adds a line, `HISTORY.read(run)` gives all of them; so do `ROUNDS` and `LEDGER`. Steps come
fast, so the job keeps their file open (`Live`), and who follows it reads what is new (`Tail`).
"""

import os
import secrets
import time
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from esprof.core.errors import unreadable
from esprof.core.output import unwritable
from esprof.core.types import Ns
from esprof.run import files

MAX_BYTES_READ = 16 << 20
"""What is read of a log at most: its end."""
MAX_BYTES_OF_LIVE = 8 << 20
"""The file of a running job's steps is begun anew when it is larger than this."""

_Line = TypeVar("_Line", bound=msgspec.Struct)


class JsonLog(Generic[_Line]):
    """The log `name` of a folder, whose lines are of `kind`: one struct, or a union of several."""

    def __init__(self, name: str, kind: Any) -> None:
        self._name = name
        self._decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(kind)

    def append(self, folder: Path, line: _Line) -> None:
        """Add a line to the log, which is made where it is not there, as is its folder. Raises OutputError."""
        path, written = folder / self._name, msgspec.json.encode(line) + b"\n"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(file).st_size
                torn = (
                    size > 0 and os.pread(file, 1, size - 1) != b"\n"
                )  # By a process that was killed, or a full disk.
                os.write(file, b"\n" + written if torn else written)
            finally:
                os.close(file)
        except OSError as error:
            raise unwritable(path, error) from error

    def read(self, folder: Path) -> tuple[_Line, ...]:
        """The lines of the log, oldest first; what is no such line, such as half of one, is left out. None of a log that is
        not there. Raises InputError where it cannot be read."""
        path = folder / self._name
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_BYTES_READ))
                raw = file.read(MAX_BYTES_READ)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise unreadable(path, error) from error
        return tuple(_decoded(raw, self._decoder))


def _decoded(raw: bytes, decoder: msgspec.json.Decoder[_Line]) -> list[_Line]:
    """The lines of `raw` that can be decoded."""
    found = []
    for line in raw.splitlines():
        try:
            found.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return found


EventKind = Literal[
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
    """One thing that happened to an elastic job, a line of its history."""

    what: EventKind
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


HISTORY: JsonLog[JobEvent] = JsonLog(files.HISTORY, JobEvent)
"""What happened to an elastic job."""


RoundOutcome = Literal["kept", "missed", "reverted", "refused", "nothing", "unknown"]
"""`missed` is kept, although steps take longer than promised; `nothing` that there was nothing to advise; `unknown` that the
job ended before it told, or could not be asked."""

RoundKind = Literal["assignment", "compression"]


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round of `esprof tune`: what was advised to a running job, what was promised, and what came of it. Times are of a
    step."""

    round: int
    kind: RoundKind
    step: int
    """The step before which the job was asked."""
    outcome: RoundOutcome
    plan: str | None = None
    """Id; None where none was made."""
    counts: tuple[int, ...] = ()
    """How many ESTs each rank was to have; empty in rounds of compression."""
    codec: str = ""
    """What gradients were to be encoded by, in rounds of compression."""
    noticed_step: int | None = None
    """The step at which the job was seen to have changed; None in rounds that nothing of the kind began."""
    before_us: float | None = None
    """Measured without the plan, beside `measured_us`."""
    predicted_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    measured_us: float | None = None
    predicted_gain_pct: float | None = None
    gain_pct: float | None = None
    """Measured, in per cent of `before_us`, with its 95 % interval where the plan was tried by turns."""
    gain_low_pct: float | None = None
    gain_high_pct: float | None = None
    error_pct: float | None = None
    """How far the predicted step is off the measured one."""
    why: str = ""


ROUNDS: JsonLog[Round] = JsonLog(files.ROUNDS, Round)
"""The rounds of `esprof tune`."""


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


LedgerLine = ReplayPromise | ObservedOutcome

LEDGER: JsonLog[LedgerLine] = JsonLog(files.LEDGER, LedgerLine)
"""What what-ifs promised, and what came once the change was made. A promise is written before anything is measured, so that
none can be fitted to what came, and none that failed gets lost."""


class LiveStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a running job that is over."""

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
            if os.fstat(self._file).st_size > MAX_BYTES_OF_LIVE:
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
                raw = file.read(2 * MAX_BYTES_OF_LIVE)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self._path, error) from error
        whole = raw[: raw.rfind(b"\n") + 1]
        self._read += len(whole)
        return _decoded(whole, _STEP)
