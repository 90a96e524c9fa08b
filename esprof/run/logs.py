"""Logs of a Run, as append-only JSON lines: history and tuning rounds of an elastic job, the ledger of what-ifs, and the
steps of a running job.

`HISTORY.append(run, event)` adds a line, `HISTORY.read(run)` returns all; `ROUNDS` and `LEDGER` work alike. As steps are
frequent, the job keeps their file open (`Live`), and readers follow it (`Tail`).
"""

import os
import secrets
import time
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from esprof.core.disk import open_regular, read_end
from esprof.core.errors import unreadable
from esprof.core.output import append_line, unwritable
from esprof.core.plan import LoaderBody
from esprof.core.types import Number, Time
from esprof.run import files

MAX_BYTES = 8 << 20
"""A log above this size becomes `….1.jsonl`, in place of the one before, and a new one is begun. `read` returns the lines of
both, of each from its last bytes of twice this size."""
MAX_BYTES_OF_LIVE = 8 << 20
"""The file of a running job's steps is emptied when it exceeds this size."""

_Line = TypeVar("_Line", bound=msgspec.Struct)


class JsonLog(Generic[_Line]):
    """The log `name` in a folder, with lines of `kind`: a struct, or a union of structs."""

    def __init__(self, name: str, kind: Any) -> None:
        self._name = name
        self._decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(kind)

    def append(self, folder: Path, line: _Line) -> None:
        """Append a line; create the log and its folder if necessary. Raises OutputError."""
        path = folder / self._name
        append_line(path, msgspec.json.encode(line), older=files.older(path), max_bytes=MAX_BYTES)

    def read(self, folder: Path) -> tuple[_Line, ...]:
        """Return the lines, oldest first, without invalid or incomplete ones; empty if the log does not exist. Raises
        InputError if it cannot be read."""
        path = folder / self._name
        (inode, newest), (older_inode, older) = _end_of(path), _end_of(files.older(path))
        if older_inode == inode:  # It was renamed meanwhile.
            older = b""
        return (*_decoded(older, self._decoder), *_decoded(newest, self._decoder))


def _end_of(path: Path) -> tuple[int, bytes]:
    """The inode number and the end of a file; nothing of one that does not exist. Raises InputError."""
    try:
        return read_end(path, 2 * MAX_BYTES)
    except FileNotFoundError:
        return 0, b""
    except OSError as error:
        raise unreadable(path, error) from error


def _decoded(raw: bytes, decoder: msgspec.json.Decoder[_Line]) -> list[_Line]:
    """Return the valid lines of `raw`."""
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
    "proven",
    "diverged",
    "left",
    "accepted",
    "rejected",
    "rolled_back",
    "searched",
]
"""`kept`, `missed` and `reverted` are outcomes of a plan: a `missed` plan stays adopted, but gains less than predicted.
`proven` and `diverged`: proofs have found the same bits, or other ones. `accepted`, `rejected` and `rolled_back` are a
person's decisions on a plan. `searched`: a learning rate was chosen."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a job that a plan may change."""

    ests: tuple[tuple[int, ...], ...]
    """ESTs of each rank."""
    codec: str | None = None
    """None if the plan does not change it."""
    loader: LoaderBody | None = None
    """None if the plan does not change it."""
    every: Number | None = None
    """Steps between checkpoints; None if the plan does not change it."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of an elastic job, a line of its history."""

    what: EventKind
    """Kind of the event."""
    step: Number
    """The event happened before this step."""
    time_ns: Time = msgspec.field(default_factory=time.time_ns)
    """Since the Unix epoch."""
    plan: str | None = None
    """Id of the plan concerned."""
    version: Number | None = None
    """Version of the plan."""
    before_us: float | None = None
    """Median step before the plan."""
    after_us: float | None = None
    """Median step with the plan."""
    promised_us: float | None = None
    """Predicted step with the plan."""
    gain_low_us: float | None = None
    """Lower end of the 95 % interval of the reduction of a step in a trial."""
    gain_high_us: float | None = None
    """Upper end of that interval."""
    phases_us: dict[str, float] = {}
    """Downtime by phase when the number of processes changed."""
    was: Setting | None = None
    """The setting before an adopted or tried plan, which a rollback restores."""
    every: Number | None = None
    """Steps to the next checkpoint, if the job adapts that."""
    proven: Number | None = None
    """The last step whose bits are proven, if one is."""
    reason: str = ""
    """Reason for the event, if one is known."""


HISTORY: JsonLog[JobEvent] = JsonLog(files.HISTORY, JobEvent)
"""Events of an elastic job."""


RoundOutcome = Literal["kept", "missed", "reverted", "refused", "nothing", "unknown"]
"""`missed`: the plan stays adopted, although steps are longer than predicted; `nothing`: there was no advice; `unknown`: the
job ended before it reported an outcome, or could not be reached."""

RoundKind = Literal["assignment", "compression"]


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round of `esprof tune`: the advice to a running job with the predicted and measured gain. Times are per step."""

    round: Number
    """Number of the round."""
    kind: RoundKind
    """What the advice changes."""
    step: Number
    """The job was asked before this step."""
    outcome: RoundOutcome
    """Result of the trial."""
    plan: str | None = None
    """Id; None without a plan."""
    counts: tuple[int, ...] = ()
    """Planned number of ESTs of each rank; empty in rounds of compression."""
    codec: str = ""
    """Planned codec, in rounds of compression."""
    noticed_step: Number | None = None
    """The step at which a change of the job was detected, if that started the round."""
    before_us: float | None = None
    """Measured without the plan, in the same period as `measured_us`."""
    predicted_us: float | None = None
    """Predicted step with the plan."""
    low_us: float | None = None
    """Lower end of the prediction's interval."""
    high_us: float | None = None
    """Upper end of that interval."""
    measured_us: float | None = None
    """Measured step with the plan."""
    predicted_gain_pct: float | None = None
    """Predicted gain, in per cent of a step."""
    gain_pct: float | None = None
    """Measured, in per cent of `before_us`; with a 95 % interval if the trial was interleaved."""
    gain_low_pct: float | None = None
    """Lower end of that interval."""
    gain_high_pct: float | None = None
    """Upper end of that interval."""
    error_pct: float | None = None
    """Error of the predicted step relative to the measured one."""
    why: str = ""
    """Reason for the outcome, if one is known."""


ROUNDS: JsonLog[Round] = JsonLog(files.ROUNDS, Round)
"""The rounds of `esprof tune`."""


class JobClass(msgspec.Struct, frozen=True, kw_only=True):
    """Properties by which predictions for similar jobs are grouped. None means unknown."""

    backend: str | None
    """Backend of its process groups, such as `gloo`; None without one."""
    devices: str
    """`CPU`, or the names of the accelerators."""
    world_size: int
    """Number of ranks."""
    gradients: str | None
    """How gradients are synchronised: `DDP`, `FSDP`, or `collectives` of the job's own; None if they are not."""

    def __str__(self) -> str:
        known = (self.gradients, self.backend, f"{self.world_size} × {self.devices}")
        return ", ".join(filter(None, known))


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean step, µs, with its 95 % interval; None with too few measurements."""

    us: float
    """The mean step."""
    low_us: float | None = None
    """Lower end of the interval."""
    high_us: float | None = None
    """Upper end of the interval."""


class ReplayPrediction(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="predicted"):
    """Prediction of a replay, before the change is made. Times are of steps with the profiler."""

    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    """Links the prediction with its outcome."""
    time_ns: Time = msgspec.field(default_factory=time.time_ns)
    """Since the Unix epoch."""
    spec: str
    """The scenario, as written."""
    terms: tuple[str, ...]
    """Kinds of its terms, such as `data[ready]`."""
    job: JobClass
    """Class of the job."""
    step_us: float
    """The mean step as it was recorded."""
    predicted_us: float
    """The predicted mean step."""
    low_us: float
    """Lower end of its interval."""
    high_us: float
    """Upper end of its interval."""
    saving_low_us: float
    """Lower end of the interval of the saving."""
    saving_high_us: float
    """Upper end of the interval of the saving."""
    known_error_pct: float | None
    """Replay error on the unchanged run."""
    unprofiled_step_us: float | None
    """The median step without profiler, as it was recorded."""
    note: str | None
    """Assumption or limit of the prediction, if any."""
    versions: dict[str, str]
    """Versions of the software that made the recording."""

    @property
    def shares(self) -> tuple[float, float, float]:
        """Predicted step and the ends of its interval, relative to the recorded step: (predicted, low, high)."""
        saved = (self.step_us - self.predicted_us, self.saving_high_us, self.saving_low_us)
        predicted, low, high = (max(0.0, 1 - saving / self.step_us) for saving in saved)
        return predicted, low, high


class ObservedOutcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="verified"):
    """Measured outcome of the prediction with the same `id`."""

    id: str
    """Id of the prediction."""
    time_ns: Time = msgspec.field(default_factory=time.time_ns)
    """Since the Unix epoch."""
    spec: str
    """The scenario, as written."""
    terms: tuple[str, ...]
    """Kinds of its terms."""
    job: JobClass
    """Class of the job."""
    by: str
    """How the change was made: `verify` or `test bed`."""
    repeats: int
    """Number of measured pairs."""
    before: Estimate
    """Step without the change."""
    predicted: Estimate
    """Predicted step with the change."""
    observed: Estimate
    """Measured step with the change."""
    error_pct: float
    """Error of the predicted step, in per cent of the observed one."""
    held: bool
    """Whether the observed step lies in the predicted interval."""
    versions: dict[str, str]
    """Versions of the software of the measured runs."""


LedgerLine = ReplayPrediction | ObservedOutcome

LEDGER: JsonLog[LedgerLine] = JsonLog(files.LEDGER, LedgerLine)
"""Predictions of what-ifs and measured outcomes. A prediction is written before the measurement, so that it cannot be fitted
to the outcome, and failed ones are not lost."""


class LiveStep(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step of a running job."""

    step: Number
    """Number of the step."""
    took_us: float
    """Time since the end of the preceding step."""
    busy_us: tuple[float, ...]
    """Time of each rank for data loading and ESTs, until it only waited for gradients."""
    ests: tuple[int, ...]
    """Number of ESTs of each rank."""
    updated_us: tuple[float, ...] = ()
    """Time of each rank's preceding optimizer step, the only measure of a rank without ESTs."""
    version: Number | None = None
    """Version of the adopted plan; None before the first one."""
    proven: Number | None = None
    """The last step before it whose bits are proven, if one is."""
    twice: bool = False
    """Whether ESTs ran twice; its times do not count then."""


_STEP = msgspec.json.Decoder(LiveStep)


class Live:
    """Writer of the file, in the job. It first removes the steps of an older job. After an OutputError it writes nothing
    more."""

    def __init__(self, run: Path) -> None:
        self._path = run / files.LIVE
        self._file: int | None = None
        """None after a failure."""
        try:
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC)
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
    """Follows the growing file in a Run directory."""

    def __init__(self, run: Path) -> None:
        self._path = run / files.LIVE
        self._read = 0

    def read(self) -> list[LiveStep]:
        """Return the steps since the last call, at first all in the file, without invalid or incomplete lines; empty if the
        file does not exist. Raises InputError if it cannot be read."""
        try:
            with open(open_regular(self._path), "rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:  # It was emptied.
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
