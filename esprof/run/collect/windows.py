"""Read the windows of a rank, its Kineto traces, into one event table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from esprof.core import readable
from esprof.core.disk import open_regular
from esprof.core.errors import InputError, unreadable
from esprof.core.types import Bytes
from esprof.run.collect.allocations import read_allocations
from esprof.run.collect.calls import read_calls, with_calls
from esprof.run.collect.notes import JobsTrace, RankNotes, RecordedWindow
from esprof.run.collect.raw import calls_path, trace_path
from esprof.run.collect.rolled_rows import NotedStep, RankRows
from esprof.run.collect.shapes import with_shapes
from esprof.run.collect.stacks import stacks_of
from esprof.run.collect.stages import loads_of_steps
from esprof.run.groups import Group
from esprof.run.kineto.reader import Trace, read_trace
from esprof.run.kineto.steps.trace_steps import TraceSteps
from esprof.run.raw.settings import Settings
from esprof.run.run import RunWarning, Window
from esprof.run.schema import ALLOCATIONS, EVENTS, STACKS, Table, table

_IDS_OF_WINDOW = 1 << 32
"""Range of the correlation ids of one window: they have 32 bits and may restart in each window."""


@dataclass
class RankWindows:
    """The profiler's data of one rank."""

    whole: list[Window] = field(default_factory=list)
    """Windows that could be read, by first step."""
    events: Table = field(default_factory=lambda: table({}, EVENTS))
    """Events of all timed windows, by window and start."""
    stacks: Table = field(default_factory=lambda: table({}, STACKS))
    allocations: Table = field(default_factory=lambda: table({}, ALLOCATIONS))
    groups: dict[str, Group] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    warnings: list[RunWarning] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)


def read_windows(raw: Path, notes: RankNotes, rows: RankRows, samples: Table, settings: Settings) -> RankWindows:
    """Read the windows of one rank, and the traces that the job wrote itself, if they have at most `settings.max_trace`
    bytes. `samples` and the stages in `rows` determine the stacks in silences.

    `warnings` names windows that cannot be read, and `unreadable` their files, without traces of the job itself.
    """
    found = RankWindows()
    events: list[tuple[int, Table]] = []
    stacks: list[Table] = []
    allocations: list[Table] = []
    shaped: dict[int, Table | None] = {}
    batches = _batch_sizes(notes, rows) if settings.shapes_in == "stack" else {}
    for window in notes.windows:
        try:
            read = _read_window(raw, notes, window, found)
        except InputError as error:
            file = trace_path(raw, notes.rank, window)
            _give_up(found, notes, file, f"its window from step {window.first} on: {error.reason}")
            continue
        found.whole.append(Window(first=window.first, last=window.last, stacks=window.phase == "stack"))
        if window.phase == "timed":
            events.append((window.first, _with_own_ids(read, len(events))))
            if notes.model is not None:
                allocations.append(read_allocations(trace_path(raw, notes.rank, window), read))
            continue
        stacks.append(stacks_of(read, samples, rows.stages))
        if settings.shapes_in == "stack" and events and settings.first_stack(events[-1][0]) == window.first:
            noted = read.where(read.ints("step") <= window.last)
            shaped[events[-1][0]] = with_shapes(events[-1][1], noted, batches)
    if settings.shapes_in == "stack":
        events = _with_shapes(events, shaped, notes, found)
    for trace in notes.jobs_traces.values():
        try:
            whole, read = _read_jobs_trace(raw, notes, trace, rows.steps, settings.max_trace, found)
        except InputError as error:
            _warn(found, notes, "jobs-trace", f"the job's own trace is not included in the run: {error}")
            continue
        found.whole.append(whole)
        events.append((whole.first, _with_own_ids(read, len(events))))
    found.whole.sort(key=lambda window: window.first)
    by_step = [table for _, table in sorted(events, key=lambda one: one[0])]
    found.events, found.stacks = _joined(by_step, EVENTS), _joined(stacks, STACKS)
    found.allocations = _joined(allocations, ALLOCATIONS)
    return found


def _read_window(raw: Path, notes: RankNotes, window: RecordedWindow, found: RankWindows) -> Table:
    """Return the events of a window. The trace, which is large, is released."""
    trace = _read_regular(trace_path(raw, notes.rank, window))
    _take_over(found, notes, trace)
    if window.phase != "timed":
        return trace.events
    # Calls before the window may have collectives that extend into it.
    return _whole_steps(_with_calls(trace, calls_path(raw, notes.rank, window.first), notes, found), window)


def _read_regular(path: Path, steps: TraceSteps | None = None) -> Trace:
    """As `read_trace`. Raises InputError for a pipe, too: opening it would block."""
    try:
        os.close(open_regular(path))
    except OSError as error:
        raise unreadable(path, error) from error
    return read_trace(path, steps)


def _read_jobs_trace(
    raw: Path, notes: RankNotes, left: JobsTrace, steps: Sequence[NotedStep], limit: Bytes, found: RankWindows
) -> tuple[Window, Table]:
    """Return the window and the events of the complete steps in a trace of the job's own profiler. Steps are those that the
    recorder counted, not those of the profiler."""
    path = Path(left.path)
    whole = [step for step in steps if left.start_ns <= step.start_ns and step.start_ns + step.dur_ns <= left.end_ns]
    if not whole:
        raise InputError("it contains no complete step", path=path)
    _refuse_large(path, limit)
    start_ns, took_ns = (np.array([getattr(one, name) for one in whole]) for name in ("start_ns", "dur_ns"))
    spans = TraceSteps(np.array([step.step for step in whole]), start_ns, start_ns + took_ns)
    trace = _read_regular(path, spans)
    if trace.rank is not None and trace.rank != notes.rank:
        raise InputError(f"it is of rank {trace.rank}", path=path, remedy="Let each rank write a file of its own.")
    _take_over(found, notes, trace)
    events = trace.events
    if left.calls is not None:
        events = _with_calls(trace, calls_path(raw, notes.rank, left.calls), notes, found)
    step, begin_ns = events.ints("step"), events.ints("start_ns")
    reaches_in = (begin_ns < start_ns[0]) & (begin_ns + events.ints("dur_ns") > start_ns[0])
    return Window(first=whole[0].step, last=whole[-1].step), events.where((step >= 0) | reaches_in)


def _refuse_large(path: Path, limit: Bytes) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    if size > limit:
        raise InputError(
            f"it has {readable.size(size)}, more than the {readable.size(limit)} allowed",
            path=path,
            remedy="Raise --max-trace.",
        )


def _take_over(found: RankWindows, notes: RankNotes, trace: Trace) -> None:
    """Add groups, versions and warnings of a trace to `found`."""
    found.groups |= {group.name: group for group in trace.groups}
    found.versions |= trace.versions
    for warning in trace.warnings:
        _warn(found, notes, warning.code, warning.message)


def _with_calls(trace: Trace, file: Path, notes: RankNotes, found: RankWindows) -> Table:
    """Return the events of `trace` with the collectives that PyTorch recorded in `file`."""
    if not file.exists():  # Without it, only sizes and numbers are missing; a job of one process has none.
        return trace.events
    try:
        return with_calls(trace.events, read_calls(file), trace.local_groups)
    except InputError as error:
        _give_up(found, notes, file, f"the collectives of a window: {error.reason}")
        return trace.events


def _whole_steps(events: Table, window: RecordedWindow) -> Table:
    """Return `events` without an incomplete last step and without events that ended before the window.

    Events that extend into the window stay, such as a kernel that was launched in the preceding step.
    """
    step, start, end = events.ints("step"), events.ints("start_ns"), events.ints("start_ns") + events.ints("dur_ns")
    begins = start[events.is_kind("step") & (step == window.first)]
    if not len(begins):
        raise InputError("the trace does not contain its first step")
    return events.where((step <= window.last) & (end > begins.min()))


def _with_own_ids(events: Table, number: int) -> Table:
    """Return `events` with correlation ids that are unique among the windows of the rank."""
    arrow = events.arrow
    for name in ("correlation", "sync_correlation"):
        # The number of the window is stored above the 32 bits of the id; a missing id, -1, stays null.
        ids = events.ints(name)
        moved = pa.array(ids % _IDS_OF_WINDOW + number * _IDS_OF_WINDOW, mask=ids < 0)
        arrow = arrow.set_column(arrow.schema.get_field_index(name), EVENTS.field(name), moved)
    return Table(arrow)


def _joined(tables: list[Table], schema: pa.Schema) -> Table:
    if len(tables) <= 1:
        return tables[0] if tables else table({}, schema)
    joined = pa.concat_tables([one.arrow for one in tables])
    return Table(joined.unify_dictionaries().combine_chunks())


def _batch_sizes(notes: RankNotes, rows: RankRows) -> dict[int, tuple[int | None, int | None]]:
    """Return (samples, tokens) of the batches of each step."""
    loads = loads_of_steps(notes, rows)
    sizes = zip(loads["samples"], loads["tokens"], strict=True)
    return {step.step: size for step, size in zip(rows.steps, sizes, strict=True)}


def _with_shapes(
    events: list[tuple[int, Table]], shaped: Mapping[int, Table | None], notes: RankNotes, found: RankWindows
) -> list[tuple[int, Table]]:
    """Return the timed windows with shapes (`shaped`, by first step), or with none where one of them lacks them: what an
    operation does would otherwise seem to differ between windows."""
    whole = [(first, one) for first, _ in events if (one := shaped.get(first)) is not None]
    if len(whole) == len(events):
        return whole
    lacking = next(first for first, _ in events if shaped.get(first) is None)
    message = (
        f"the shapes of its operations are unknown: the timed steps from step {lacking} on are followed by no steps with "
        "stacks that do the same work, and only those record shapes; with --stack-steps 0, timed steps record them"
    )
    _warn(found, notes, "shapes-unknown", message)
    return events


def _give_up(found: RankWindows, notes: RankNotes, file: Path, what: str) -> None:
    _warn(found, notes, "rank-unreadable", what)
    if file.exists():
        found.unreadable.append(file)


def _warn(found: RankWindows, notes: RankNotes, code: str, message: str) -> None:
    warning = RunWarning(code, f"rank {notes.rank}: {message}", (notes.rank,))
    if warning not in found.warnings:
        found.warnings.append(warning)
