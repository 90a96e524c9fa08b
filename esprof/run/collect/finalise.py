"""Convert the logs of the job's processes in `raw` into a Run."""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from esprof.core.credentials import without_secrets
from esprof.core.disk import read_regular
from esprof.core.errors import OutputError
from esprof.core.types import NOT_DECODED, Rank
from esprof.run import files
from esprof.run.clocks.by_exchange import HostOffset, clocks_of_ranks
from esprof.run.collect.accesses import accesses_of
from esprof.run.collect.labels import labels_of, travels_of
from esprof.run.collect.modules import modules_of
from esprof.run.collect.notes import RankNotes
from esprof.run.collect.probes import probes_of
from esprof.run.collect.raw import (
    any_rank_alive,
    read_job,
    read_notes,
    read_rows,
    read_starting,
    snapshot_paths,
    write_job,
)
from esprof.run.collect.rolled_rows import NotedStep, RankRows
from esprof.run.collect.shortfall import is_empty, job_warnings, lost_windows, nothing_recorded, rank_warnings
from esprof.run.collect.stacks import samples_of
from esprof.run.collect.stages import loads_of_steps, stages_of
from esprof.run.collect.windows import RankWindows, read_windows
from esprof.run.directory import read_run, write_flight, write_meta, write_probes, write_table
from esprof.run.flight.log import FlightLog, may_be_alive, read_flight, read_snapshot
from esprof.run.groups import Group, joined_groups
from esprof.run.overhead import Overhead, overhead
from esprof.run.raw import names
from esprof.run.raw.reasons import SnapshotReason
from esprof.run.raw.relaunch import Relaunch
from esprof.run.raw.settings import Settings
from esprof.run.reading import run_all
from esprof.run.run import KnobReading, ModelBytes, RankMeta, Run, RunMeta, RunWarning, WarningCode
from esprof.run.schema import MEMORY, STEPS, Table, table
from esprof.version import __version__

_MAX_SETTINGS_BYTES = 1 << 20
_LATEST_WINDOWS = 100
_COMPARED_STEPS = 100
"""Plain steps on each side of a window that it is compared with: the job's work may change over time."""
_PATIENCE_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True)
class _Recorded:
    """One rank of the Run to be."""

    meta: RankMeta
    tables: dict[str, Table]
    """Tables by name; empty once they are on disk."""
    flight: FlightLog
    groups: dict[str, Group]
    versions: dict[str, str]
    warnings: list[RunWarning]
    unreadable: list[Path]


def finalise(
    out: Path,
    command: Sequence[str],
    exit_code: int | None,
    settings: Settings,
    executor: Executor | None = None,
    warnings: Sequence[RunWarning] = (),
) -> Run:
    """Write the Run `out` from `out/raw`, then remove `raw`, except for unreadable files there.

    If a process of the job outlives the command, the incomplete Run is returned, and `esprof.load` finishes it later.
    `executor` reads the ranks, one task each; by default a few threads do. The Run's warnings name missing data.

    Raises InputError with the likely reason if nothing was recorded; `out` is removed then. Raises OutputError if `out`
    cannot be written; `raw` stays, and `esprof.load` finishes the Run later.
    """
    raw, command = out / files.RAW, without_secrets(command)
    if not raw.is_dir():
        shutil.rmtree(out, ignore_errors=True)
        raise nothing_recorded(raw, (), settings)
    if _outlived(raw):
        with suppress(OutputError):
            write_job(raw, msgspec.structs.replace(read_job(raw), command=command, exit_code=exit_code))
        return _still_running(out, settings, executor)
    with _alone_in(raw):
        if files.is_complete(out):  # Another process that opened it has finished it.
            return read_run(out)
        notes, unattributed = _all_notes(raw, exit_code)
        nothing = nothing_recorded(raw, notes, settings) if is_empty(raw, notes, settings) else None
        ranks = [] if nothing else _read_ranks(raw, notes, settings, executor, out)
        if ranks:
            all_warnings = [*warnings, *job_warnings(raw, notes, unattributed)]
            probes = probes_of(raw, settings, command, max(one.identity.world_size for one in notes), len(notes))
            if probes is not None:
                write_probes(out, probes)
            write_meta(out, _meta(raw, notes, ranks, settings, command, exit_code, all_warnings))
    # NFS removes no folder with an open file in it, as the lock is.
    if nothing:
        shutil.rmtree(out, ignore_errors=True)
        raise nothing
    _remove(raw, {file for rank in ranks for file in rank.unreadable}.union(unattributed))
    return read_run(out)


def open_unfinished(path: Path, executor: Executor | None = None) -> Run:
    """Open the incomplete Run in `path`: it has a `raw`, but no `run.json`.

    The Run is finished first if no process of the job is alive and `path` is writable. Raises InputError if nothing was
    recorded.
    """
    raw = path / files.RAW
    settings, job = _settings(raw), read_job(raw)
    if any_rank_alive(raw, in_doubt=True):
        return _still_running(path, settings, executor)
    message = "the launcher of this run was killed: the exit code of the command is unknown"
    was_awaited = job.launcher_pid is not None and job.exit_code is None
    gone = [RunWarning("launcher-gone", message)] if was_awaited else []
    if _is_ours(raw) and not is_empty(raw, _all_notes(raw, job.exit_code)[0], settings):
        with suppress(OutputError):
            return finalise(path, job.command, job.exit_code, settings, executor, gone)
    return _as_it_stands(path, settings, executor, gone)


def _still_running(path: Path, settings: Settings, executor: Executor | None) -> Run:
    message = "the job is still running: the run is incomplete"
    return _as_it_stands(path, settings, executor, [RunWarning(WarningCode.STILL_RUNNING, message)])


def _outlived(raw: Path) -> bool:
    """Whether processes of the job are still alive some time after the end of the command."""
    deadline = time.monotonic() + _PATIENCE_S
    while any_rank_alive(raw, in_doubt=False):
        if time.monotonic() > deadline:
            return True
        time.sleep(_POLL_S)
    return False


def _as_it_stands(path: Path, settings: Settings, executor: Executor | None, why: Sequence[RunWarning]) -> Run:
    """Return the Run in `path` with the data recorded so far, in memory."""
    raw = path / files.RAW
    notes, unattributed = _all_notes(raw, read_job(raw).exit_code)
    if not notes:
        raise nothing_recorded(raw, notes, settings)
    ranks = {rank.meta.rank: rank for rank in _read_ranks(raw, notes, settings, executor, None)}
    job, warnings = read_job(raw), [*why, *job_warnings(raw, notes, unattributed)]
    meta = _meta(raw, notes, list(ranks.values()), settings, job.command, job.exit_code, warnings)

    def read(name: str, rank: Rank) -> Table | None:
        return ranks[rank].tables.get(name)

    return Run(meta, read, path, flight=lambda rank: ranks[rank].flight)


def _all_notes(raw: Path, exit_code: int | None) -> tuple[list[RankNotes], list[Path]]:
    """Return the notes of all ranks, including those that ended no step, by rank, and the files without a rank."""
    notes, unattributed = read_notes(raw)
    starting = read_starting(raw, notes, exit_code)
    return sorted([*notes, *starting], key=lambda one: one.rank), unattributed


def _read_ranks(
    raw: Path, notes: Sequence[RankNotes], settings: Settings, executor: Executor | None, out: Path | None
) -> list[_Recorded]:
    """Read all ranks. With `out`, write the tables of each rank there and release them."""
    read = partial(_read_rank, raw, settings) if out is None else partial(_write_rank, out, settings)
    return run_all(executor, read, notes, _clocks(notes))


def _clocks(notes: Sequence[RankNotes]) -> list[HostOffset | None]:
    """Return the offset of each rank's clock to that of rank 0; None if unknown."""
    hosts = {one.rank: one.identity.host for one in notes}
    clocks = clocks_of_ranks({one.rank: one.clock for one in notes}, hosts)
    return [clocks[one.rank] for one in notes]


def _write_rank(out: Path, settings: Settings, notes: RankNotes, clock: HostOffset | None) -> _Recorded:
    """Write the tables and the flight log of one rank, whose process has ended."""
    recorded = _recorded(out / files.RAW, settings, notes, clock, alive=False)
    for name, rows in recorded.tables.items():
        write_table(out, name, notes.rank, rows)
    write_flight(out, notes.rank, recorded.flight)
    recorded.tables.clear()
    return recorded


def _read_rank(raw: Path, settings: Settings, notes: RankNotes, clock: HostOffset | None) -> _Recorded:
    """One rank, whose process may still run."""
    return _recorded(raw, settings, notes, clock, alive=may_be_alive(raw / notes.files.notes))


def _recorded(raw: Path, settings: Settings, notes: RankNotes, clock: HostOffset | None, *, alive: bool) -> _Recorded:
    rows = read_rows(raw, notes)
    samples = samples_of(notes, rows)
    windows = read_windows(raw, notes, rows, samples, settings)
    lost = lost_windows(notes, rows, alive=alive)
    tables = _tables(notes, rows, windows) | ({"samples": samples} if len(samples) else {})
    warnings, unreadable = _broken_snapshots(raw, notes)
    return _Recorded(
        meta=_rank_meta(notes, rows, windows, lost=len(lost), clock=clock),
        tables={name: clock.aligned(own) for name, own in tables.items()} if clock else tables,
        flight=_flight(raw, notes, alive=alive),
        groups=windows.groups,
        versions=notes.identity.versions | windows.versions,
        warnings=[*rank_warnings(notes, rows, lost, settings, alive=alive), *windows.warnings, *warnings],
        unreadable=windows.unreadable + unreadable,
    )


def _flight(raw: Path, notes: RankNotes, *, alive: bool) -> FlightLog:
    log = read_flight(raw, notes.files, ended=_ended(notes))
    # Before the end of its first step a process records its end only if an exception ends it.
    ended = log.ended or (
        notes.starting is not None and any(one.reason == SnapshotReason.ERROR for one in log.snapshots)
    )
    return msgspec.structs.replace(log, alive=alive, starting=notes.starting is not None, ended=ended)


def _ended(notes: RankNotes) -> bool:
    """Whether the process ended normally, or the recorder stopped earlier, so that its end is unknown."""
    return notes.ended or notes.stopped


def _tables(notes: RankNotes, rows: RankRows, windows: RankWindows) -> dict[str, Table]:
    steps = {name: [getattr(step, name) for step in rows.steps] for name in NotedStep.__struct_fields__}
    memory = {name: [getattr(sample, name) for sample in rows.memories] for name in MEMORY.names}
    found = {
        "events": windows.events,
        "steps": table(steps | loads_of_steps(notes, rows), STEPS),
        "stages": stages_of(notes, rows),
        "accesses": accesses_of(notes, rows),
        "labels": labels_of(rows),
        "travels": travels_of(rows),
        "memory": table(memory, MEMORY),
        "stacks": windows.stacks,
        "allocations": windows.allocations,
        "modules": modules_of(rows),
    }
    return {name: own for name, own in found.items() if len(own) or name in ("events", "steps")}


def _rank_meta(
    notes: RankNotes, rows: RankRows, windows: RankWindows, *, lost: int, clock: HostOffset | None
) -> RankMeta:
    who, memory, limit = notes.identity, notes.memory, notes.memory_limit
    return RankMeta(
        rank=who.rank,
        host=who.host,
        device=who.device,
        accelerators=who.accelerators,
        cpus=tuple(who.cpus),
        gpu_cpus=tuple(who.gpu_cpus),
        cpu_quota=who.cpu_quota,
        threads=who.threads,
        paced_by=notes.paced.by if notes.paced else None,
        pid=who.pid,
        clock_offset_ns=clock.offset_ns if clock else None,
        clock_drift_ppm=clock.drift_ppm if clock else None,
        clock_residual_ns=clock.error_ns if clock else None,
        windows=tuple(windows.whole),
        events=len(windows.events),
        dropped_steps=rows.dropped_steps,
        windows_lost=lost,
        ended=_ended(notes),
        overhead=_overhead(rows),
        peak_memory=memory.peak if memory else None,
        peak_memory_of=memory.of if memory else None,
        memory_limit=limit.limit if limit else None,
        model=_model(notes),
        knobs=tuple(KnobReading(name=one.name, value=one.value, reason=one.reason) for one in notes.knobs.values()),
    )


def _model(notes: RankNotes) -> ModelBytes | None:
    found = notes.model
    if found is None:
        return None
    return ModelBytes(
        parameters=found.parameters,
        gradients=found.gradients,
        buffers=found.buffers,
        optimizer=found.optimizer,
        buckets=found.buckets,
        parameter_sizes=tuple(found.parameter_sizes),
    )


def _overhead(rows: RankRows) -> Overhead | None:
    """Return the overhead of the latest windows relative to the plain steps near them, without the job's first step,
    which includes one-time work."""
    at = {phase: [row for row in rows.steps[1:] if row.phase == phase] for phase in ("timed", "plain")}
    timed, plain = (np.array([(row.step, row.dur_ns) for row in of], np.int64).reshape(-1, 2) for of in at.values())
    windows = np.split(timed, np.flatnonzero(np.diff(timed[:, 0]) > 1) + 1)[-_LATEST_WINDOWS:]
    firsts, lasts = ([window[end, 0] for window in windows if len(window)] for end in (0, -1))
    behind = np.searchsorted(plain[:, 0], firsts)[:, None] - 1 - np.arange(_COMPARED_STEPS)
    ahead = np.searchsorted(plain[:, 0], lasts)[:, None] + np.arange(_COMPARED_STEPS)
    near = np.unique(np.concatenate([behind, ahead], axis=None))
    near = near[(near >= 0) & (near < len(plain))]
    return overhead([window[:, 1] for window in windows], plain[near, 1])


def _broken_snapshots(raw: Path, notes: RankNotes) -> tuple[list[RunWarning], list[Path]]:
    broken = [file for file in snapshot_paths(raw, notes.files) if read_snapshot(file) is None]
    message = f"rank {notes.rank}: a flight recorder snapshot cannot be read"
    return [RunWarning("rank-unreadable", message, (notes.rank,)) for _ in broken], broken


def _meta(
    raw: Path,
    notes: Sequence[RankNotes],
    ranks: Sequence[_Recorded],
    settings: Settings,
    command: Sequence[str],
    exit_code: int | None,
    warnings: Sequence[RunWarning],
) -> RunMeta:
    versions = {name: version for rank in ranks for name, version in rank.versions.items()}
    job = read_job(raw)
    return RunMeta(
        created_ns=job.started_ns or time.time_ns(),
        command=tuple(command),
        relaunch=Relaunch(folder=job.folder, environment=job.environment, settings=settings) if job.folder else None,
        exit_code=exit_code,
        versions=versions | {"esprof": __version__},
        world_size=max(one.identity.world_size for one in notes),
        ranks=tuple(rank.meta for rank in ranks),
        groups=joined_groups(group for rank in ranks for group in rank.groups.values()),
        warnings=(*warnings, *(warning for rank in ranks for warning in rank.warnings)),
    )


@contextmanager
def _alone_in(raw: Path) -> Iterator[None]:
    """Hold the exclusive right to finish this Run. Without file locks, several processes may do the same work."""
    with ExitStack() as held:
        with suppress(OSError):
            # NFS locks no folder, and no file that is opened to read only. Nothing in `raw` may stop this as a pipe would.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            lock = os.open(raw / names.FINISHING, flags, 0o600)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_ours(raw: Path) -> bool:
    """Whether only this user can have written `raw`: files of other users are read, but not removed."""
    found = os.lstat(raw)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _settings(raw: Path) -> Settings:
    try:
        return msgspec.json.decode(read_regular(raw / names.SETTINGS, _MAX_SETTINGS_BYTES), type=Settings)
    except (OSError, *NOT_DECODED):
        return Settings()


def _remove(raw: Path, but: set[Path]) -> None:
    """Remove all of `raw`, or all files in it except `but`."""
    if not but:
        shutil.rmtree(raw, ignore_errors=True)
        return
    for file in raw.iterdir():
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file, ignore_errors=True)
        elif file not in but:
            file.unlink(missing_ok=True)
