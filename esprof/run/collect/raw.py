"""Read the logs of the job's processes in `raw`, which `esprof.recorder.injected` writes; read and write `job.json`.

A process may have been killed within a line, and the disk may have been full: unreadable data is reported and skipped.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from esprof.core.disk import open_regular, read_regular
from esprof.core.output import write_bytes
from esprof.core.types import Rank, Time
from esprof.run.collect.notes import RankIdentity, RankNotes, RankRow, RecordedWindow
from esprof.run.collect.rolled_rows import MarkedStage, RankRows, RolledRows
from esprof.run.flight.log import is_locked, read_flight
from esprof.run.raw import names

RowT = TypeVar("RowT")

# Created once, as several threads use them: docs/decisions/0002-libraries.md.
_RANK_ROWS: msgspec.json.Decoder[RankRow] = msgspec.json.Decoder(RankRow)
_ROLLED_ROWS: msgspec.json.Decoder[RolledRows] = msgspec.json.Decoder(RolledRows)

_MAX_JOB_BYTES = 16 << 20


class LaunchedJob(msgspec.Struct, frozen=True):
    """Content of `job.json`: the command and its start time."""

    command: tuple[str, ...] = ()
    launcher_pid: int | None = None
    """Process id of the launcher; None for a job that records itself."""
    started_ns: Time | None = None
    exit_code: int | None = None
    """Exit code of the command if processes of the job outlived it; otherwise None."""
    folder: str | None = None
    """Working folder of the command; None for a job that records itself."""
    environment: dict[str, str] = {}
    """Variables that matter for speed (`esprof.run.raw.relaunch`)."""


def write_job(raw: Path, job: LaunchedJob) -> None:
    write_bytes(raw / names.JOB, msgspec.json.encode(job))


def read_job(raw: Path) -> LaunchedJob:
    """Return the job that is recorded in `raw`; an empty one if `job.json` is missing or corrupt."""
    try:
        return msgspec.json.decode(read_regular(raw / names.JOB, _MAX_JOB_BYTES), type=LaunchedJob)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return LaunchedJob()


def read_notes(raw: Path) -> tuple[list[RankNotes], list[Path]]:
    """Return the notes of all ranks that wrote any, by rank, and the files of notes that do not name their rank."""
    found = {file: _rank_notes(file) for file in names.all_notes(raw)}
    return [notes for notes in found.values() if notes], [file for file, notes in found.items() if not notes]


def read_starting(raw: Path, notes: Sequence[RankNotes], exit_code: int | None) -> list[RankNotes]:
    """Return the notes of ranks that ended no step because they hung or were stopped from outside, by rank.

    Empty if the command succeeded: such processes were helpers that never train. Ranks in `notes` are excluded.
    """
    prefixes = _starting_prefixes(raw)
    files = {rank: names.starting_files(prefix) for rank, prefix in prefixes.items()}
    if exit_code == 0 or not any(_shows_hang(raw, one) for one in files.values()):
        return []
    seen = {one.rank for one in notes}
    found = [_rank_notes(raw / one.notes, one) for rank, one in files.items() if rank not in seen]
    return [one for one in found if one]


def _starting_prefixes(raw: Path) -> dict[Rank, str]:
    """Map each rank that has ended no step to the file prefix of its latest process, by rank."""
    found = {}
    for file in sorted(raw.glob(names.ALL_STARTING), key=lambda file: (len(file.name), file.name)):
        if (start := names.starting(file.name)) is not None:
            found[start[1]] = start[0]
    return dict(sorted(found.items()))


def _shows_hang(raw: Path, files: names.RankFiles) -> bool:
    """Whether a process hung or was ended by a signal, and not by an exception of its own."""
    log = read_flight(raw, files, ended=False)
    return bool(log.fatal) or any(one.error_type in (None, "KeyboardInterrupt") for one in log.snapshots)


def read_rows(raw: Path, notes: RankNotes) -> RankRows:
    """Return the rows of each step of one rank and its loader workers."""
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
    """Path of the Kineto trace of a window of `rank`."""
    return raw / names.window(rank, window.phase, window.first)


def calls_path(raw: Path, rank: Rank, first: int) -> Path:
    """Path of the dump of PyTorch's own flight recorder at the end of the timed window that begins with step `first`."""
    return raw / names.calls(rank, first)


def snapshot_paths(raw: Path, files: names.RankFiles) -> list[Path]:
    """Snapshots of a rank, oldest first."""
    return sorted(raw.glob(files.snapshots), key=lambda file: (len(file.name), file.name))


def any_rank_alive(raw: Path, *, in_doubt: bool) -> bool:
    """Whether a rank of the job is alive: it holds the lock of its notes while it is.

    `in_doubt` is returned if this is unknown, as on a file system without locks.
    """
    starting = (names.starting_files(prefix) for prefix in _starting_prefixes(raw).values())
    notes = list(names.all_notes(raw)) or [raw / one.notes for one in starting if _shows_hang(raw, one)]
    held = [is_locked(file) for file in notes]
    return any(in_doubt if one is None else one for one in held)


def processes(raw: Path) -> tuple[int, int]:
    """Return the number of Python processes that loaded the recorder, and of those that imported torch."""
    return len(list(raw.glob(names.PYTHONS))), len(list(raw.glob(names.TORCHES)))


def claimed_again(raw: Path) -> list[Rank]:
    """Ranks that a second process claimed, ascending."""
    return sorted(
        {rank for file in raw.glob(names.ALL_AGAIN) if (rank := names.rank_claimed_again(file.name)) is not None}
    )


def _rank_notes(file: Path, starting: names.RankFiles | None = None) -> RankNotes | None:
    """Return the notes in `file`, one of `starting` if given; None if the file does not name its rank."""
    unreadable: list[str] = []
    rows: list[RankRow] = list(_lines(file, _RANK_ROWS, unreadable))
    identity = next((row for row in rows if isinstance(row, RankIdentity)), None)
    if identity is None or not (starting or file.name == names.notes_of(identity.rank)):
        return None
    notes = RankNotes(identity, starting, unreadable=unreadable)
    for row in rows:
        notes.add(row)
    gone = {(row.phase, row.first) for row in notes.lost}
    retained = [window for window in notes.windows if (window.phase, window.first) not in gone]
    notes.windows = sorted(retained, key=lambda window: window.first)
    return notes


def _add_rolled(rows: RankRows, file: Path, stages: list[MarkedStage]) -> None:
    for line in _lines(file, _ROLLED_ROWS, rows.unreadable):
        rows.add(line, stages)


def _lines(file: Path, decoder: msgspec.json.Decoder[RowT], unreadable: list[str]) -> Iterator[RowT]:
    """Yield the decoded lines of `file`. Messages about corrupt lines and read errors are added to `unreadable`."""
    broken = 0
    try:
        with open(open_regular(file), "rb") as opened:
            for line in opened:
                try:
                    yield decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    broken += 1
    except OSError as error:
        unreadable.append(f"{file.name}: {error.strerror}")
    if broken:
        unreadable.append(f"{file.name}: {broken} {'line is' if broken == 1 else 'lines are'} corrupt")
