"""Turns what the job's processes left in `raw` into a Run."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import esprof
from esprof.errors import InputError
from esprof.trace.kineto import read_trace
from esprof.trace.run import Group, RankMeta, Run, RunMeta, Warning, Window
from esprof.trace.rundir import read_run, write_meta, write_table
from esprof.trace.schema import STEPS, Table, table
from esprof.trace.stacks import stacks_of
from esprof.tracer.injected.settings import Settings
from esprof.tracer.raw import RankNotes, RecordedWindow, read_notes, trace_path
from esprof.tracer.shortfall import nothing_recorded, shortfalls
from esprof.tracer.stages import loads_of_steps, stages_of

_ENOUGH_STEPS = 3
"""Steps of a kind below which a median of them means little."""


@dataclass(frozen=True)
class _Recorded:
    """What `run.json` is to say of one rank, and what that rank's trace knows of the job."""

    meta: RankMeta
    groups: tuple[Group, ...]
    versions: dict[str, str]
    warnings: tuple[Warning, ...]


def finalise(out: Path, command: Sequence[str], exit_code: int, settings: Settings) -> Run:
    """Write the Run `out` from `out/raw`, then remove `raw`.

    A rank without a timed window is left out and named in the Run's warnings. Where no rank has one, `out` is removed
    and an InputError says what was seen of the job instead. Where traces are there and none can be read, `raw` stays.
    """
    raw = out / "raw"
    notes = read_notes(raw)
    if not any("timed" in one.windows for one in notes):
        explanation = nothing_recorded(raw, notes, settings)
        shutil.rmtree(out, ignore_errors=True)
        raise explanation
    recorded, faults = [], []
    for one in notes:
        if "timed" not in one.windows:
            continue
        try:
            recorded.append(_record_rank(out, one))
        except InputError as error:
            faults.append(Warning("rank-unreadable", f"rank {one.rank}: {error}", (one.rank,)))
    if not recorded:
        raise InputError(f"no rank can be read: {faults[0].message}", path=raw)
    warnings = shortfalls(raw, notes, settings) + faults
    groups = {group.name: group for rank in recorded for group in rank.groups}
    versions = {name: version for rank in recorded for name, version in rank.versions.items()}
    meta = RunMeta(
        created_ns=time.time_ns(),
        command=tuple(command),
        exit_code=exit_code,
        versions=versions | {"esprof": esprof.__version__},
        world_size=max(one.identity.world_size for one in notes),
        ranks=tuple(rank.meta for rank in recorded),
        groups=tuple(groups.values()),
        warnings=(*warnings, *(warning for rank in recorded for warning in rank.warnings)),
    )
    write_meta(out, meta)
    shutil.rmtree(raw)
    return read_run(out)


def _record_rank(out: Path, notes: RankNotes) -> _Recorded:
    """Write the tables of one rank. Raises InputError where its trace cannot be read."""
    raw, rank = out / "raw", notes.rank
    trace = read_trace(trace_path(raw, rank, "timed"))
    events = _whole_steps(trace.events, notes.windows["timed"])
    write_table(out, "events", rank, events)
    write_table(out, "steps", rank, _steps_of(notes))
    write_table(out, "stages", rank, stages_of(notes))
    if "stack" in notes.windows:
        stacks = read_trace(trace_path(raw, rank, "stack"))
        write_table(out, "stacks", rank, stacks_of(stacks.events, notes.running))
    return _Recorded(
        meta=_rank_meta(notes, len(events)),
        groups=trace.groups,
        versions=notes.identity.versions | trace.versions,
        warnings=tuple(Warning(w.code, f"rank {rank}: {w.message}", (rank,)) for w in trace.warnings),
    )


def _whole_steps(events: Table, window: RecordedWindow) -> Table:
    """`events` without a step that the job did not live to finish, and without what ended before the window.

    What began before the window and reaches into it stays: a kernel that was launched in the step before, say.
    """
    step, start, end = events.ints("step"), events.ints("start_ns"), events.ints("start_ns") + events.ints("dur_ns")
    first_ns = start[events.is_kind("step") & (step == window.first)].min()
    return events.where((step <= window.last) & (end > first_ns))


def _steps_of(notes: RankNotes) -> Table:
    rows = {name: [getattr(step, name) for step in notes.steps] for name in ("step", "start_ns", "dur_ns", "phase")}
    return table(rows | loads_of_steps(notes), STEPS)


def _rank_meta(notes: RankNotes, events: int) -> RankMeta:
    who, memory = notes.identity, notes.memory
    return RankMeta(
        rank=who.rank,
        host=who.host,
        device=who.device,
        accelerators=who.accelerators,
        pid=who.pid,
        windows=tuple(Window(first=w.first, last=w.last, stacks=w.phase == "stack") for w in notes.windows.values()),
        events=events,
        overhead_pct=_overhead_pct(notes),
        peak_memory=memory.peak if memory else None,
        peak_memory_of=memory.of if memory else None,
    )


def _overhead_pct(notes: RankNotes) -> float | None:
    """How much longer the median timed step takes than the median plain one; None where either has too few steps."""
    timed = [step.dur_ns for step in notes.steps if step.phase == "timed"]
    plain = [step.dur_ns for step in notes.steps if step.phase == "plain"]
    if min(len(timed), len(plain)) < _ENOUGH_STEPS:
        return None
    return round(100 * (median(timed) / median(plain) - 1), 2)
