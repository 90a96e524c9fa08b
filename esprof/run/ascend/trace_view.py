"""Traces of torch_npu on Ascend devices (`trace_view.json`), as torch.profiler would have written them.

The names of processes say what their rows are. CANN's calls and the tasks of the device share a `connection_id`, or a
flow of the category `async_npu` leads from an operation to its task.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from esprof.run.kineto.lenient import Misfits, decode
from esprof.run.kineto.scan import NotJson

ASCEND_GROWTH = 12
"""Memory that reading takes, as a multiple of the file."""

_DEVICE, _CANN, _COMMUNICATION = "Ascend Hardware", "CANN", ("Communication", "HCCL")
_MARK = re.compile(rb'"name"\s*:\s*"Ascend Hardware"')
_PYTHON = "Python"
_NO_WORK = re.compile(r"WAIT|RECORD|NOTIFY|PLACE_?HOLDER|WRITE_VALUE", re.IGNORECASE)
"""Tasks by which streams wait for each other; they are no work."""
_COPIES = re.compile(r"SDMA|PCIE_DMA|MEMCPY", re.IGNORECASE)
_COLLECTIVES = re.compile(r"hcom_|hccl", re.IGNORECASE)
_FIRST_COLLECTIVE_STREAM = 1 << 20
"""Stream of the first line of collectives, above the device's own."""
_WAITS_FOR_DEVICE = "AscendCL@aclrtSynchronize"
_CATEGORIES = ("cpu_op", "user_annotation", "python_function")
"""Categories of the host that are kept; others are operations."""
_FLOW = "async_npu"

_Place = tuple[str, str, str]
"""Process, thread and time of a row, as they are written."""


class _NpuRow(msgspec.Struct):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    id: int | str | float | None = None
    args: dict[str, Any] = {}

    @property
    def connection(self) -> int | None:
        """Number that a launch shares with its tasks."""
        number = self.args.get("connection_id")
        return number if isinstance(number, int) else None

    @property
    def place(self) -> _Place:
        return str(self.pid), str(self.tid), bytes(self.ts).decode(errors="replace").strip('"')


class _NpuDocument(msgspec.Struct, rename={"rows": "traceEvents"}):
    rows: list[_NpuRow] = []


@dataclass
class _Links:
    """How rows belong together."""

    processes: dict[str, str] = field(default_factory=dict)
    """Name of each process."""
    collectives: set[int | None] = field(default_factory=set)
    """`connection_id`s of collectives, whose tasks are not read one by one."""
    operation_of: dict[_Place, int] = field(default_factory=dict)
    """Place of a task -> number of the operation that flows lead from."""
    number_of: dict[_Place, int] = field(default_factory=dict)
    """Place of an operation -> its number."""


def is_ascend(text: bytearray) -> bool:
    """Whether `text` is a trace with the process of an Ascend device."""
    return _MARK.search(text) is not None


def as_kineto(text: bytearray) -> bytearray:
    """The trace as Kineto writes traces. Raises NotJson; values that do not fit are left out."""
    wanted: Any = list[_NpuRow] if text.lstrip()[:1] == b"[" else _NpuDocument
    try:
        document = decode(bytes(text), wanted, Misfits())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotJson(str(error)) from error
    rows: list[_NpuRow] = (document.rows if isinstance(document, _NpuDocument) else document) or []
    links = _links(rows)
    converted = [one for row in rows if row.ph == "X" for one in _converted(row, links)]
    return bytearray(msgspec.json.encode({"traceEvents": converted}))


def _links(rows: list[_NpuRow]) -> _Links:
    links, sources = _Links(), {}
    for row in rows:
        if row.ph == "M" and row.name == "process_name":
            links.processes[str(row.pid)] = str(row.args.get("name", ""))
        elif row.ph == "s" and row.cat == _FLOW:
            links.number_of.setdefault(row.place, len(links.number_of) + 1)
            sources[row.id] = row.place
    for row in rows:
        if row.ph == "f" and row.cat == _FLOW and row.id in sources:
            links.operation_of[row.place] = links.number_of[sources[row.id]]
        elif row.ph == "X" and _is_collective(row, links):
            links.collectives.add(row.connection)
    links.collectives.discard(None)
    return links


def _is_collective(row: _NpuRow, links: _Links) -> bool:
    return links.processes.get(str(row.pid)) in _COMMUNICATION and _COLLECTIVES.match(row.name) is not None


def _converted(row: _NpuRow, links: _Links) -> Iterator[dict[str, Any]]:
    process = links.processes.get(str(row.pid), _PYTHON if row.cat else "")
    connection = row.connection
    times = {"ph": "X", "name": row.name, "ts": row.ts, "dur": row.dur}
    if process == _DEVICE:
        task = str(row.args.get("Task Type", ""))
        if not _NO_WORK.search(f"{task} {row.name}") and connection not in links.collectives:
            category = "gpu_memcpy" if _COPIES.search(task) else "kernel"
            yield times | _on_device(row, category, row.args.get("Stream Id", row.tid), links)
    elif _is_collective(row, links):
        stream = _FIRST_COLLECTIVE_STREAM + _number(row.tid)
        yield times | _on_device(row, "kernel", stream, links)
    elif process == _CANN and (connection is not None or row.name.startswith(_WAITS_FOR_DEVICE)):
        thread = row.args.get("Thread Id", row.tid)
        yield times | {"cat": "ascend_runtime", "tid": thread, "args": {"correlation": connection}}
    elif process == _PYTHON:
        category = row.cat if row.cat in _CATEGORIES else "cpu_op"
        args: dict[str, Any] = {
            name: row.args[name] for name in ("Sequence number", "Fwd thread id") if name in row.args
        }
        args["External id"] = links.number_of.get(row.place)
        args["Input Dims"] = _shapes(row.args.get("Input Dims"))
        yield times | {"cat": category, "pid": row.pid, "tid": row.tid, "args": args}


def _on_device(row: _NpuRow, category: str, stream: Any, links: _Links) -> dict[str, Any]:
    args = {
        "device": row.args.get("Device Id", 0),
        "stream": stream,
        "correlation": row.connection,
        "External id": links.operation_of.get(row.place),
    }
    return {"cat": category, "pid": 0, "tid": stream, "args": args}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


def _shapes(text: Any) -> Any:
    """`4,8;8,2` as lists of numbers; None for other text."""
    if not isinstance(text, str) or not re.fullmatch(r"[\d,; ]+", text):
        return None
    return [[int(size) for size in shape.split(",") if size.strip()] for shape in text.split(";")]
