"""Reads the windows of a rank: its Kineto traces, one after the other, into one event table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from esprof.errors import InputError
from esprof.recorder.collect.calls import read_calls, with_calls
from esprof.recorder.collect.notes import RankNotes, RecordedWindow, Stage
from esprof.recorder.collect.raw import calls_path, trace_path
from esprof.recorder.collect.stacks import stacks_of
from esprof.trace.kineto.reader import Trace, read_trace
from esprof.trace.run import Group, Warning, Window
from esprof.trace.schema import EVENTS, STACKS, Table, table

_IDS_OF_WINDOW = 1 << 32
"""Room for the correlation ids of one window: they are counted in 32 bits, and may begin anew with each window."""


@dataclass
class RankWindows:
    """What the profiler recorded of one rank."""

    whole: list[Window] = field(default_factory=list)
    """Windows that could be read, by first step."""
    events: Table = field(default_factory=lambda: table({}, EVENTS))
    """Events of all timed windows, by window and start."""
    stacks: Table = field(default_factory=lambda: table({}, STACKS))
    groups: dict[str, Group] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    warnings: list[Warning] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)


def read_windows(raw: Path, notes: RankNotes, samples: Table, stages: Sequence[Stage]) -> RankWindows:
    """Read the windows of one rank; `samples` and `stages` tell where its training thread was.

    A window that cannot be read is named in `warnings`, and its file in `unreadable`.
    """
    found = RankWindows()
    events: list[Table] = []
    stacks: list[Table] = []
    for window in notes.windows:
        try:
            rows = _read_window(raw, notes, window, found)
        except InputError as error:
            file = trace_path(raw, notes.rank, window)
            _give_up(found, notes, file, f"its window from step {window.first} on: {error.reason}")
            continue
        found.whole.append(Window(first=window.first, last=window.last, stacks=window.phase == "stack"))
        if window.phase == "timed":
            events.append(_with_own_ids(rows, len(events)))
        else:
            stacks.append(stacks_of(rows, samples, stages))
    found.events, found.stacks = _joined(events, EVENTS), _joined(stacks, STACKS)
    return found


def _read_window(raw: Path, notes: RankNotes, window: RecordedWindow, found: RankWindows) -> Table:
    """The events of a window, whose trace, which is large, is not kept."""
    trace = read_trace(trace_path(raw, notes.rank, window))
    found.groups |= {group.name: group for group in trace.groups}
    found.versions |= trace.versions
    for warning in trace.warnings:
        _warn(found, notes, warning.code, warning.message)
    return _timed_events(raw, notes, window, trace, found) if window.phase == "timed" else trace.events


def _timed_events(raw: Path, notes: RankNotes, window: RecordedWindow, trace: Trace, found: RankWindows) -> Table:
    events = _whole_steps(trace.events, window)
    file = calls_path(raw, notes.rank, window)
    if not file.exists():  # A job of one process makes no calls; of another, only sizes and numbers are missing.
        return events
    try:
        return with_calls(events, read_calls(file), trace.local_groups)
    except InputError as error:
        _give_up(found, notes, file, f"the collectives of its window from step {window.first} on: {error.reason}")
        return events


def _whole_steps(events: Table, window: RecordedWindow) -> Table:
    """`events` without a step that the job did not live to finish, and without what ended before the window.

    What began before the window and reaches into it stays: a kernel that was launched in the step before, say.
    """
    step, start, end = events.ints("step"), events.ints("start_ns"), events.ints("start_ns") + events.ints("dur_ns")
    begins = start[events.is_kind("step") & (step == window.first)]
    if not len(begins):
        raise InputError("the trace does not hold its first step")
    return events.where((step <= window.last) & (end > begins.min()))


def _with_own_ids(events: Table, number: int) -> Table:
    """`events` with correlation ids that no other window of the rank has."""
    arrow = events.arrow
    for name in ("correlation", "sync_correlation"):
        # The window's number goes above the 32 bits of the id; an id that is missing, -1, stays null.
        ids = events.ints(name)
        moved = pa.array(ids % _IDS_OF_WINDOW + number * _IDS_OF_WINDOW, mask=ids < 0)
        arrow = arrow.set_column(arrow.schema.get_field_index(name), EVENTS.field(name), moved)
    return Table(arrow)


def _joined(tables: list[Table], schema: pa.Schema) -> Table:
    if len(tables) <= 1:
        return tables[0] if tables else table({}, schema)
    joined = pa.concat_tables([one.arrow for one in tables])
    return Table(joined.unify_dictionaries().combine_chunks())


def _give_up(found: RankWindows, notes: RankNotes, file: Path, what: str) -> None:
    _warn(found, notes, "rank-unreadable", what)
    if file.exists():
        found.unreadable.append(file)


def _warn(found: RankWindows, notes: RankNotes, code: str, message: str) -> None:
    warning = Warning(code, f"rank {notes.rank}: {message}", (notes.rank,))
    if warning not in found.warnings:
        found.warnings.append(warning)
