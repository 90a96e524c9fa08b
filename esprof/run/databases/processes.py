"""Processes of a database of another profiler as traces, one for each rank."""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from esprof.core.errors import InputError
from esprof.core.types import Ns
from esprof.run.databases.database import Database, opened
from esprof.run.kineto.reader import Trace, trace_of_rows
from esprof.run.reading import run_all
from esprof.run.run import RunWarning

_STEP = re.compile(r"(?:train(?:ing)?[ _])?(?:step|iter|iteration|batch)[ _#:]*(\d{1,9})?$", re.IGNORECASE)
"""Ranges by which scripts mark steps: `step 3`, `iteration_3`, `Step`."""


class ForeignEvent(NamedTuple):
    """An event, by the category that torch.profiler has for it."""

    category: str
    name: str
    start_ns: Ns
    end_ns: Ns
    pid: int | None
    tid: int | None
    args: dict[str, Any]


@dataclass
class Process:
    """The events of one process; `base_ns` is added to their times."""

    pid: int
    rows: list[ForeignEvent] = field(default_factory=list)
    base_ns: Ns = 0
    devices: dict[int, str] = field(default_factory=dict)
    host: str | None = None


def read_processes(
    paths: Sequence[Path], processes: Callable[[Database], list[Process]], executor: Executor | None
) -> list[tuple[Path, Trace] | InputError]:
    """Read the processes in each database as traces; an unreadable database is an InputError."""
    results = run_all(executor, _attempt, paths, [processes] * len(paths))
    return [one for result in results for one in result]


def _attempt(path: Path, processes: Callable[[Database], list[Process]]) -> list[tuple[Path, Trace] | InputError]:
    try:
        with opened(path) as database:
            found = processes(database)
        return [(path, trace) for trace in traces_of(path, found)]
    except InputError as error:
        return [error]


def traces_of(path: Path, found: list[Process]) -> list[Trace]:
    """A trace for each process in a file. Several are ranks by their device, or else by the order of their ids.

    Raises InputError if there is none.
    """
    if not found:
        remedy = "Profile it with CUDA or HIP tracing, which records kernels."
        raise InputError("has no process that used a GPU", path=path, remedy=remedy)
    found = [process for process in found if any(map(_is_timed, process.rows))]
    if not found:
        raise InputError("has no event with a begin and an end", path=path, remedy="Export it again.")
    if len(found) == 1:
        return [_trace(found[0])]
    devices = [{row.args["device"] for row in process.rows if "stream" in row.args} for process in found]
    by_device = all(len(mine) == 1 for mine in devices) and len(set.union(*devices)) == len(found)
    order = sorted(range(len(found)), key=lambda at: _numbers_first(*devices[at] if by_device else (found[at].pid,)))
    how = "their devices" if by_device else "their process ids"
    warning = RunWarning("rank-guessed", f"the ranks of {len(found)} processes in one file are assumed by {how}")
    traces = [replace(_trace(found[at]), rank=rank) for rank, at in enumerate(order)]
    return [replace(trace, warnings=(*trace.warnings, warning)) for trace in traces]


def _numbers_first(value: object) -> tuple[bool, int]:
    """A key that sorts by number; whatever else a broken database holds comes last."""
    return (False, value) if isinstance(value, int) else (True, 0)


def _trace(process: Process) -> Trace:
    timed = [row for row in process.rows if _is_timed(row)]
    events = (
        {
            "ph": "X",
            "cat": row.category,
            "name": name,
            "pid": row.pid,
            "tid": row.tid,
            "ts": _us(row.start_ns + process.base_ns),
            "dur": _us(max(row.end_ns - row.start_ns, 0)),
            "args": {key: value for key, value in row.args.items() if value is not None},
        }
        for row, name in _with_steps(timed)
    )
    devices = [{"id": number, "name": name} for number, name in process.devices.items()]
    trace = trace_of_rows(events, {"deviceProperties": devices, "host_name": process.host})
    if not (lost := len(process.rows) - len(timed)):
        return trace
    warning = RunWarning("events-left-out", f"events without a begin or an end were left out: {lost}")
    return replace(trace, warnings=(*trace.warnings, warning))


def _is_timed(row: ForeignEvent) -> bool:
    """Whether it has a begin and an end: an event that never ended has no end, and a broken one anything."""
    return isinstance(row.start_ns, int) and isinstance(row.end_ns, int)


def _us(ns: Ns) -> Decimal:
    """Microseconds with all digits: a float cannot hold ns since 1970."""
    return Decimal(ns).scaleb(-3)


def _with_steps(rows: list[ForeignEvent]) -> Iterable[tuple[ForeignEvent, str]]:
    """The rows with their names. Ranges that mark steps get the name that torch.profiler gives a step."""
    marks = [at for at, row in enumerate(rows) if "stream" not in row.args and _STEP.match(row.name)]
    if any(row.name.startswith("ProfilerStep#") for row in rows) or len({rows[at].tid for at in marks}) != 1:
        return ((row, row.name) for row in rows)
    marks.sort(key=lambda at: rows[at].start_ns)
    numbers = [match[1] for at in marks if (match := _STEP.match(rows[at].name))]
    known = None not in numbers and len(set(numbers)) == len(numbers)
    step_of = {at: numbers[i] if known else i for i, at in enumerate(marks)}
    return (
        (row._replace(category="user_annotation"), f"ProfilerStep#{step_of[at]}") if at in step_of else (row, row.name)
        for at, row in enumerate(rows)
    )
