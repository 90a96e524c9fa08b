"""Reads what the job's processes noted in `raw`: the launcher's end of `esprof.tracer.injected`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from esprof.types import Bytes, Ns, Rank

RowT = TypeVar("RowT")


class _Row(msgspec.Struct, frozen=True, tag_field="kind"):
    pass


class Identity(_Row, frozen=True, tag="rank"):
    rank: Rank
    world_size: int
    host: str
    pid: int
    device: str
    accelerators: int
    versions: dict[str, str]


class Step(_Row, frozen=True, tag="step"):
    step: int
    start_ns: Ns
    dur_ns: Ns
    phase: str


class Next(_Row, frozen=True, tag="next"):
    iterator: int
    epoch: int
    batch: int | None
    worker: int | None
    workers: int
    prefetch: int | None
    start_ns: Ns
    end_ns: Ns
    samples: int | None
    tokens: int | None
    training: bool


class Workers(_Row, frozen=True, tag="workers"):
    """The worker processes that a DataLoader iterator started, in the order of their numbers."""

    process: str
    iterator: int
    start_ns: Ns
    pids: list[int]


class Fetch(_Row, frozen=True, tag="fetch"):
    pid: int
    worker: int
    epoch: int
    batch: int | None
    start_ns: Ns
    end_ns: Ns
    samples: int | None


class RecordedWindow(_Row, frozen=True, tag="window"):
    phase: str
    first: int
    last: int


class Running(_Row, frozen=True, tag="running"):
    """(function, current line, first line) of the frames on the stack when the window with stacks began."""

    frames: list[tuple[str, int, int]]


class Memory(_Row, frozen=True, tag="memory"):
    peak: Bytes
    of: str


class ProfilerTaken(_Row, frozen=True, tag="profiler-taken"):
    step: int


class Fault(_Row, frozen=True, tag="fault"):
    message: str


_RankRow = Identity | Step | Next | Workers | RecordedWindow | Running | Memory | ProfilerTaken | Fault


@dataclass
class RankNotes:
    """What one rank noted down, by kind."""

    identity: Identity
    steps: list[Step] = field(default_factory=list)
    nexts: list[Next] = field(default_factory=list)
    workers: list[Workers] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    windows: dict[str, RecordedWindow] = field(default_factory=dict)
    running: list[tuple[str, int, int]] = field(default_factory=list)
    memory: Memory | None = None
    profiler_taken: ProfilerTaken | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def rank(self) -> Rank:
        return self.identity.rank


def read_notes(raw: Path) -> list[RankNotes]:
    """The notes of every rank that left some, by rank."""
    return [notes for file in sorted(raw.glob("rank-*.jsonl")) if (notes := _rank_notes(raw, file)) is not None]


def trace_path(raw: Path, rank: Rank, phase: str) -> Path:
    """Where `rank` left the Kineto trace of its window `timed` or `stack`."""
    return raw / f"rank-{rank:05d}.{phase}.json"


def _rank_notes(raw: Path, file: Path) -> RankNotes | None:
    rows: list[_RankRow] = list(_lines(file, msgspec.json.Decoder(_RankRow)))
    identity = next((row for row in rows if isinstance(row, Identity)), None)
    if identity is None:
        return None
    notes = RankNotes(identity)
    for row in rows:
        match row:
            case Step():
                notes.steps.append(row)
            case Next():
                notes.nexts.append(row)
            case Workers():
                notes.workers.append(row)
            case RecordedWindow():
                notes.windows[row.phase] = row
            case Running():
                notes.running = row.frames
            case Memory():
                notes.memory = row
            case ProfilerTaken():
                notes.profiler_taken = row
            case Fault():
                notes.faults.append(row.message)
    for process in {row.process for row in notes.workers}:
        notes.fetches += _lines(raw / f"fetch.{process}.jsonl", msgspec.json.Decoder(Fetch))
    return notes


def _lines(file: Path, decoder: msgspec.json.Decoder[RowT]) -> Iterator[RowT]:
    """Decoded lines of `file`; none where there is no such file, and without a line that a killed process broke off."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    for line in content.splitlines():
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError:
            continue


def processes(raw: Path) -> tuple[int, int]:
    """How many Python processes found the recorder, and how many of them imported torch."""
    return len(list(raw.glob("python.*"))), len(list(raw.glob("torch.*")))


def claimed_again(raw: Path) -> list[Rank]:
    """Ranks that a second process claimed to be, ascending."""
    return sorted({int(file.name[6:11]) for file in raw.glob("again-*")})
