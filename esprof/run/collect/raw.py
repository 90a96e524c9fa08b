"""Reads what the job's processes noted in `raw`, and writes and reads `job.json`, the launcher's own note there: its end of
`esprof.recorder.injected`.

Any of them may have been killed in the middle of a line, and the disk may have been full: what cannot be read is named, the
rest is kept.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from esprof.core.output import write_bytes
from esprof.core.types import Ns, Rank
from esprof.run.collect.notes import (
    MarkedStage,
    RankIdentity,
    RankNotes,
    RankRow,
    RankRows,
    RecordedWindow,
    RolledRows,
)
from esprof.run.flight.log import is_locked, read_flight
from esprof.run.raw import names

RowT = TypeVar("RowT")

# Made here, and not where they are used, which is by several threads: docs/decisions/0018-decoders-are-made-once.md.
_RANK_ROWS: msgspec.json.Decoder[RankRow] = msgspec.json.Decoder(RankRow)
_ROLLED_ROWS: msgspec.json.Decoder[RolledRows] = msgspec.json.Decoder(RolledRows)


class LaunchedJob(msgspec.Struct, frozen=True):
    """`job.json`: what the launcher started, and when."""

    command: tuple[str, ...] = ()
    launcher_pid: int | None = None
    """Process id of the launcher; None for a job that records itself."""
    started_ns: Annotated[Ns, msgspec.Meta(ge=0, lt=1 << 62)] | None = None  # Garbage may stand there.
    exit_code: int | None = None
    """Exit code of the command, where processes of the job outlived it; else None."""


def write_job(raw: Path, job: LaunchedJob) -> None:
    write_bytes(raw / names.JOB, msgspec.json.encode(job))


def read_job(raw: Path) -> LaunchedJob:
    """The job that is recorded in `raw`; an empty one where `job.json` is missing or garbage."""
    try:
        return msgspec.json.decode((raw / names.JOB).read_bytes(), type=LaunchedJob)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return LaunchedJob()


def read_notes(raw: Path) -> tuple[list[RankNotes], list[Path]]:
    """The notes of every rank that left some, by rank, and the files that should be notes, but do not tell of which rank."""
    found = {file: _rank_notes(file) for file in names.all_notes(raw)}
    return [notes for notes in found.values() if notes], [file for file, notes in found.items() if not notes]


def read_starting(raw: Path, notes: Sequence[RankNotes], exit_code: int | None) -> list[RankNotes]:
    """The notes of processes that were to be ranks and ended no step, by rank: where they stood still, or something stopped
    them from outside. None of a command that ended in good order: then they were helpers that never train.

    Ranks that are in `notes` are left out.
    """
    prefixes = _starting_prefixes(raw)
    files = {rank: names.starting_files(prefix) for rank, prefix in prefixes.items()}
    if exit_code == 0 or not any(_shows_hang(raw, one) for one in files.values()):
        return []
    seen = {one.rank for one in notes}
    found = [_rank_notes(raw / one.notes, one) for rank, one in files.items() if rank not in seen]
    return [one for one in found if one]


def _starting_prefixes(raw: Path) -> dict[Rank, str]:
    """Rank -> what the names of the files of its latest life begin with, for ranks that have ended no step, by rank."""
    found = {}
    for file in sorted(raw.glob(names.ALL_STARTING), key=lambda file: (len(file.name), file.name)):
        if (start := names.starting(file.name)) is not None:
            found[start[1]] = start[0]
    return dict(sorted(found.items()))


def _shows_hang(raw: Path, files: names.RankFiles) -> bool:
    """Whether a process stood still for long, or was ended by a signal: an exception of its own is no matter of ours."""
    log = read_flight(raw, files, ended=False)
    return bool(log.fatal) or any(one.error_type in (None, "KeyboardInterrupt") for one in log.snapshots)


def read_rows(raw: Path, notes: RankNotes) -> RankRows:
    """The rows that one rank and its loader workers noted at every step."""
    rows = RankRows()
    for file in (raw / name for name in names.rolling(names.rank_prefix(notes.rank))):
        if file.exists():
            _add_rolled(rows, file, rows.stages)
    for process in {row.process for row in notes.workers}:
        for file in sorted(raw.glob(names.workers_of(process))):
            pid = names.pid_of_worker(file.name) or 0
            _add_rolled(rows, file, rows.worker_stages.setdefault(pid, []))
    if notes.counted_anew_ns is not None:
        rows.drop_before(notes.counted_anew_ns)
    # Of the two files of a rank either may be the older one.
    rows.steps = sorted({row.step: row for row in rows.steps if row.step > 0}.values(), key=lambda row: row.step)
    rows.nexts.sort(key=lambda row: row.start_ns)
    rows.fetches.sort(key=lambda row: row.start_ns)
    rows.memories.sort(key=lambda row: row.at_ns)
    rows.samples.sort(key=lambda row: row.at_ns)
    return rows


def trace_path(raw: Path, rank: Rank, window: RecordedWindow) -> Path:
    """Where `rank` left the Kineto trace of a window."""
    return raw / names.window(rank, window.phase, window.first)


def calls_path(raw: Path, rank: Rank, first: int) -> Path:
    """Where `rank` left what PyTorch's own flight recorder knew when the timed window from step `first` on was closed."""
    return raw / names.calls(rank, first)


def snapshot_paths(raw: Path, files: names.RankFiles) -> list[Path]:
    """The snapshots that a rank left, in the order in which they were taken."""
    return sorted(raw.glob(files.snapshots), key=lambda file: (len(file.name), file.name))


def any_rank_alive(raw: Path, *, in_doubt: bool) -> bool:
    """Whether a rank of the job still runs: it holds the lock of its notes as long as it lives.

    `in_doubt` is the answer where that cannot be told, as on a file system that knows no locks.
    """
    starting = (names.starting_files(prefix) for prefix in _starting_prefixes(raw).values())
    notes = list(names.all_notes(raw)) or [raw / one.notes for one in starting if _shows_hang(raw, one)]
    held = [is_locked(file) for file in notes]
    return any(in_doubt if one is None else one for one in held)


def processes(raw: Path) -> tuple[int, int]:
    """How many Python processes found the recorder, and how many of them imported torch."""
    return len(list(raw.glob(names.PYTHONS))), len(list(raw.glob(names.TORCHES)))


def claimed_again(raw: Path) -> list[Rank]:
    """Ranks that a second process claimed to be, ascending."""
    return sorted(
        {rank for file in raw.glob(names.ALL_AGAIN) if (rank := names.rank_claimed_again(file.name)) is not None}
    )


def _rank_notes(file: Path, starting: names.RankFiles | None = None) -> RankNotes | None:
    """The notes in `file`, which is one of `starting` where that is given; None where it does not say whose they are."""
    unreadable: list[str] = []
    rows: list[RankRow] = list(_lines(file, _RANK_ROWS, unreadable))
    identity = next((row for row in rows if isinstance(row, RankIdentity)), None)
    if identity is None or not (starting or file.name == names.notes_of(identity.rank)):
        return None
    notes = RankNotes(identity, starting, unreadable=unreadable)
    for row in rows:
        notes.add(row)
    gone = {(row.phase, row.first) for row in notes.lost}
    kept = [window for window in notes.windows if (window.phase, window.first) not in gone]
    notes.windows = sorted(kept, key=lambda window: window.first)
    return notes


def _add_rolled(rows: RankRows, file: Path, stages: list[MarkedStage]) -> None:
    for line in _lines(file, _ROLLED_ROWS, rows.unreadable):
        rows.add(line, stages)


def _lines(file: Path, decoder: msgspec.json.Decoder[RowT], unreadable: list[str]) -> Iterator[RowT]:
    """Decoded lines of `file`. A message of how many lines make no sense, or why none can be read, goes to `unreadable`."""
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
