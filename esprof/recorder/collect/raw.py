"""Reads what the job's processes noted in `raw`: the launcher's end of `esprof.recorder.injected`.

Any of them may have been killed in the middle of a line, and the disk may have been full: what cannot be read is named, the
rest is kept.
"""

import glob
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from esprof.output import write_bytes
from esprof.trace.flight.log import is_locked
from esprof.trace.run import MOST_RANKS
from esprof.types import Ns, Rank

RowT = TypeVar("RowT")

# Garbage may look like a row: what no table could hold is no row.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Large = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Time = Annotated[Ns, msgspec.Meta(ge=0, lt=1 << 62)]
_Span = Annotated[Ns, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]

Phase = Literal["plain", "warmup", "timed", "export", "stack"]


class _Row(msgspec.Struct, frozen=True, tag_field="kind"):
    """A row that is kept for good."""


class Identity(_Row, frozen=True, tag="rank"):
    rank: Annotated[Rank, msgspec.Meta(ge=0, lt=MOST_RANKS)]
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    host: str
    pid: _Large
    device: str
    accelerators: _Number
    versions: dict[str, str]


class Workers(_Row, frozen=True, tag="workers"):
    """The worker processes that a DataLoader iterator started, in the order of their numbers."""

    process: str
    iterator: int
    start_ns: _Time
    pids: list[_Large]


class RecordedWindow(_Row, frozen=True, tag="window"):
    phase: Literal["timed", "stack"]
    first: _Number
    last: _Number


class Running(_Row, frozen=True, tag="running"):
    """(function, current line, first line) of the frames on the stack when the stack window `first` began."""

    first: _Number
    frames: list[tuple[str, int, int]]


class Memory(_Row, frozen=True, tag="memory"):
    peak: _Large
    of: str


class MemoryLimit(_Row, frozen=True, tag="memory-limit"):
    limit: _Large
    of: str


class ProfilerTaken(_Row, frozen=True, tag="profiler-taken"):
    step: _Number


class ClockReading(_Row, frozen=True, tag="clock"):
    """This process's clock against that of rank 0, read by an exchange that took `rtt_ns`."""

    at_ns: _Time
    offset_ns: _Span
    rtt_ns: _Time


class Missed(_Row, frozen=True, tag="missed"):
    """A window that was ordered for step `at`, of which the rank heard in `step`."""

    at: _Number
    step: _Number


class Lost(_Row, frozen=True, tag="lost"):
    first: _Number
    phase: str
    reason: str


class Fault(_Row, frozen=True, tag="fault"):
    message: str


class End(_Row, frozen=True, tag="end"):
    step: _Number


_RankRow = (
    Identity
    | Workers
    | RecordedWindow
    | Running
    | Memory
    | MemoryLimit
    | ProfilerTaken
    | ClockReading
    | Missed
    | Lost
    | Fault
    | End
)


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    step: _Number
    start_ns: _Time
    dur_ns: _Time
    phase: Phase


class Next(msgspec.Struct, frozen=True, array_like=True, gc=False):
    iterator: _Number
    epoch: _Number
    batch: _Large | None
    worker: _Number | None
    workers: _Number
    prefetch: _Number | None
    start_ns: _Time
    end_ns: _Time
    samples: _Large | None
    tokens: _Large | None
    training: bool


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pid: _Large
    worker: _Number
    epoch: _Number
    batch: _Large | None
    start_ns: _Time
    end_ns: _Time
    samples: _Large | None


class MemorySample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    step: _Number
    phase: str | None
    at_ns: _Time
    allocated: _Large | None
    reserved: _Large | None
    peak_allocated: _Large | None
    rss: _Large | None


class Stage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the job itself marked as a stage of its work."""

    name: str
    start_ns: _Time
    end_ns: _Time


class _Rolled(msgspec.Struct, frozen=True, tag_field="kind"):
    """A line of rows of one kind, of which the oldest are dropped."""


class _Steps(_Rolled, frozen=True, tag="steps"):
    rows: list[Step]


class _Nexts(_Rolled, frozen=True, tag="nexts"):
    rows: list[Next]


class _Fetches(_Rolled, frozen=True, tag="fetches"):
    rows: list[Fetch]


class _Memories(_Rolled, frozen=True, tag="memories"):
    rows: list[MemorySample]


class _Stages(_Rolled, frozen=True, tag="stages"):
    rows: list[Stage]


_RolledRows = _Steps | _Nexts | _Fetches | _Memories | _Stages


@dataclass
class RankNotes:
    """The rows that one rank noted for good: few."""

    identity: Identity
    workers: list[Workers] = field(default_factory=list)
    windows: list[RecordedWindow] = field(default_factory=list)
    """Those whose traces were kept, by first step."""
    running: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    memory: Memory | None = None
    memory_limit: MemoryLimit | None = None
    profiler_taken: list[ProfilerTaken] = field(default_factory=list)
    clock: list[ClockReading] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    ended: bool = False
    """Whether the process came to its end in good order."""
    unreadable: list[str] = field(default_factory=list)

    @property
    def stopped(self) -> bool:
        """Whether the recorder ended before the process did: how that ended is not known."""
        return any(fault.startswith("recording ended") for fault in self.faults)

    @property
    def rank(self) -> Rank:
        return self.identity.rank

    def taken(self, phase: str) -> list[RecordedWindow]:
        return [window for window in self.windows if window.phase == phase]


@dataclass
class RankRows:
    """The rows that one rank and its loader workers noted at every step, by time. Of a long job only the newest are left."""

    steps: list[Step] = field(default_factory=list)
    nexts: list[Next] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    memories: list[MemorySample] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    worker_stages: dict[int, list[Stage]] = field(default_factory=dict)
    """By the process id of the worker."""
    unreadable: list[str] = field(default_factory=list)

    @property
    def dropped_steps(self) -> int:
        """Steps from 1 to the last one that have no row any more."""
        return self.steps[-1].step - len(self.steps) if self.steps else 0


class Job(msgspec.Struct, frozen=True):
    """`job.json`: what the launcher started, and when."""

    command: tuple[str, ...] = ()
    launcher_pid: int | None = None
    """None for a job that records itself."""
    started_ns: _Time | None = None
    exit_code: int | None = None
    """How the command ended, where processes of the job outlived it."""


def write_job(raw: Path, job: Job) -> None:
    write_bytes(raw / "job.json", msgspec.json.encode(job))


def read_job(raw: Path) -> Job:
    """What is recorded in `raw`; nothing is known of it where the file is missing or garbage."""
    try:
        return msgspec.json.decode((raw / "job.json").read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Job()


def read_notes(raw: Path) -> tuple[list[RankNotes], list[Path]]:
    """The notes of every rank that left some, by rank, and the files that should be notes, but do not tell of which rank."""
    files = sorted(raw.glob("rank-" + "[0-9]" * 5 + "*.jsonl"))
    found = {file: _rank_notes(file) for file in files if ".roll." not in file.name}
    return [notes for notes in found.values() if notes], [file for file, notes in found.items() if not notes]


def read_rows(raw: Path, notes: RankNotes) -> RankRows:
    """The many rows of one rank."""
    rows = RankRows()
    for file in sorted(raw.glob(f"rank-{notes.rank:05d}.roll.[01].jsonl")):
        _add_rolled(rows, file, rows.stages)
    for process in {row.process for row in notes.workers}:
        for file in sorted(raw.glob(f"fetch.{glob.escape(process)}.*.roll.[01].jsonl")):
            pid = file.name.split(".")[-4]
            _add_rolled(rows, file, rows.worker_stages.setdefault(int(pid) if pid.isdecimal() else 0, []))
    # Of the two files of a rank either may be the older one.
    rows.steps = sorted({row.step: row for row in rows.steps if row.step > 0}.values(), key=lambda row: row.step)
    rows.nexts.sort(key=lambda row: row.start_ns)
    rows.fetches.sort(key=lambda row: row.start_ns)
    rows.memories.sort(key=lambda row: row.at_ns)
    return rows


def trace_path(raw: Path, rank: Rank, window: RecordedWindow) -> Path:
    """Where `rank` left the Kineto trace of a window."""
    return raw / f"rank-{rank:05d}.{window.phase}.{window.first}.json"


def calls_path(raw: Path, rank: Rank, window: RecordedWindow) -> Path:
    """Where `rank` left what PyTorch's own flight recorder knew when a timed window was closed."""
    return raw / f"rank-{rank:05d}.calls.{window.first}.json"


def snapshot_paths(raw: Path, rank: Rank) -> list[Path]:
    """The snapshots that `rank` left, in the order in which they were taken."""
    return sorted(raw.glob(f"flight-{rank:05d}.*.json"), key=lambda file: (len(file.name), file.name))


def is_alive(raw: Path, *, in_doubt: bool) -> bool:
    """Whether a rank of the job still runs: it holds the lock of its notes as long as it lives.

    `in_doubt` is the answer where that cannot be told, as on a file system that knows no locks.
    """
    held = [is_locked(file) for file in raw.glob("rank-*.jsonl") if ".roll." not in file.name]
    return any(in_doubt if one is None else one for one in held)


def processes(raw: Path) -> tuple[int, int]:
    """How many Python processes found the recorder, and how many of them imported torch."""
    return len(list(raw.glob("python.*"))), len(list(raw.glob("torch.*")))


def claimed_again(raw: Path) -> list[Rank]:
    """Ranks that a second process claimed to be, ascending."""
    return sorted({int(file.name[6:11]) for file in raw.glob("again-" + "[0-9]" * 5 + ".*")})


def _rank_notes(file: Path) -> RankNotes | None:
    """The notes in `file`; None where it does not say whose they are."""
    unreadable: list[str] = []
    rows: list[_RankRow] = list(_lines(file, msgspec.json.Decoder(_RankRow), unreadable))
    identity = next((row for row in rows if isinstance(row, Identity)), None)
    if identity is None or file.name != f"rank-{identity.rank:05d}.jsonl":
        return None
    notes = RankNotes(identity, unreadable=unreadable)
    for row in rows:
        _add_note(notes, row)
    gone = {(row.phase, row.first) for row in notes.lost}
    kept = [window for window in notes.windows if (window.phase, window.first) not in gone]
    notes.windows = sorted(kept, key=lambda window: window.first)
    return notes


def _add_note(notes: RankNotes, row: _RankRow) -> None:
    match row:
        case Workers():
            notes.workers.append(row)
        case RecordedWindow():
            notes.windows.append(row)
        case Running():
            notes.running[row.first] = row.frames
        case Memory():
            notes.memory = row
        case MemoryLimit():
            notes.memory_limit = row
        case ProfilerTaken():
            notes.profiler_taken.append(row)
        case ClockReading():
            notes.clock.append(row)
        case Missed():
            notes.missed.append(row)
        case Lost():
            notes.lost.append(row)
        case Fault():
            notes.faults.append(row.message)
        case End():
            notes.ended = True


def _add_rolled(rows: RankRows, file: Path, stages: list[Stage]) -> None:
    for line in _lines(file, msgspec.json.Decoder(_RolledRows), rows.unreadable):
        match line:
            case _Steps():
                rows.steps += line.rows
            case _Nexts():
                rows.nexts += line.rows
            case _Fetches():
                rows.fetches += line.rows
            case _Memories():
                rows.memories += line.rows
            case _Stages():
                stages += line.rows


def _lines(file: Path, decoder: msgspec.json.Decoder[RowT], unreadable: list[str]) -> Iterator[RowT]:
    """Decoded lines of `file`. How many lines make no sense is added to `unreadable`."""
    broken = 0
    try:
        with file.open("rb") as opened:
            for line in opened:
                try:
                    yield decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    broken += 1
    except OSError as error:
        unreadable.append(f"{file.name}: {error.strerror}")
    if broken:
        unreadable.append(f"{file.name}: {broken} {'line is' if broken == 1 else 'lines are'} no row")
