"""JSON of the first rocprof (`--hip-trace`, `--sys-trace`): rows as in Chrome's traces, all values as text.

The rows are those of `sqlitedb.py` and `tblextr.py` in rocprofiler.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from esprof.core.types import Ns
from esprof.run.databases.processes import ForeignEvent, Process

BEGIN = re.compile(rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}\s*,')
"""How the file begins: with an empty row, which no other tool writes."""

_LABEL = re.compile(r"(?:\d+ )?(CPU HIP API|CPU HSA API|Markers and Ranges|COPY|GPU(\d{1,6}))")
_HOST = {"CPU HIP API": "cuda_runtime", "CPU HSA API": "cuda_runtime", "Markers and Ranges": "cpu_op"}
_FLOW = "DataFlow"


class _ChromeRow(msgspec.Struct, frozen=True):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | str = 0
    dur: int | str = 0
    id: int | str | None = None
    args: dict[str, Any] = {}

    @property
    def place(self) -> tuple[str, str, str]:
        """Process, thread and time, by which flows name a row."""
        return str(self.pid), str(self.tid), str(self.ts)


class _ChromeTrace(msgspec.Struct, frozen=True, rename="camel"):
    trace_events: list[_ChromeRow]


def processes_of_rows(text: str) -> list[Process]:
    """The processes of a trace. Raises msgspec.DecodeError where it is malformed."""
    rows = msgspec.json.decode(text, type=_ChromeTrace).trace_events
    labels = {
        str(row.pid): str(row.args.get("name", "")) for row in rows if row.ph == "M" and row.name == "process_name"
    }
    kinds = {pid: match for pid, label in labels.items() if (match := _LABEL.fullmatch(label)) is not None}
    hip = any(match[1] == "CPU HIP API" for match in kinds.values())
    flows = {row.place: number + 1 for row in rows if row.cat == _FLOW and (number := _whole(row.id)) is not None}
    found: dict[int, Process] = {}
    for pid, event in _events([row for row in rows if row.ph == "X"], kinds, flows, hip=hip):
        found.setdefault(pid, Process(pid)).rows.append(event)
    return list(found.values())


def _events(
    rows: list[_ChromeRow], kinds: dict[str, re.Match[str]], flows: dict[tuple[str, str, str], int], *, hip: bool
) -> Iterator[tuple[int, ForeignEvent]]:
    """(process, event) of the rows of known processes; HSA calls only if there are none of HIP."""
    for row in rows:
        kind = kinds.get(str(row.pid))
        if kind is None or (hip and kind[1] == "CPU HSA API"):
            continue
        start, end = _times(row)
        pid, thread, correlation = _whole(row.args.get("pid")) or 0, _whole(row.tid) or 0, flows.get(row.place)
        if kind[1] in _HOST:
            args = {"correlation": correlation}
            yield pid, ForeignEvent(_HOST[kind[1]], row.name, start, end, pid, thread, args)
        else:
            category, device = ("gpu_memcpy", 0) if kind[1] == "COPY" else ("kernel", int(kind[2]))
            args = {"device": device, "stream": thread, "correlation": correlation}
            yield pid, ForeignEvent(category, row.name, start, end, device, thread, args)


def _times(row: _ChromeRow) -> tuple[Ns, Ns]:
    """Start and end of a row: its own nanoseconds, or else its microseconds."""
    begin, end = _whole(row.args.get("BeginNs")), _whole(row.args.get("EndNs"))
    if begin is not None and end is not None:
        return begin, end
    start = (_whole(row.ts) or 0) * 1000
    return start, start + (_whole(row.dur) or 0) * 1000


def _whole(value: Any) -> int | None:
    """A number that may be written as text; None for other values."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and 0 <= value < 10**18 else None
