"""JSON of rocprofv3 (`--output-format json`): kernels, copies, HIP calls and roctx ranges, one tool for each process.

The fields are those of rocprofiler-sdk's `generateJSON.cpp`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from esprof.core.errors import InputError
from esprof.core.types import Ns
from esprof.run.databases import rocprof_chrome
from esprof.run.databases.processes import ForeignEvent, Process
from esprof.run.kineto.compressed import head
from esprof.run.kineto.content import content
from esprof.run.reading import memory_limit

_BEGIN = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
_HEAD = 256
_GROWTH = 8
"""Memory that reading takes, as a multiple of the file."""
_GPU = 2
"""`type` of an agent that is a GPU."""
_RANGES = "MARKER_CORE_RANGE_API"


class _Handle(msgspec.Struct, frozen=True):
    handle: int = 0


class _Correlation(msgspec.Struct, frozen=True):
    internal: int = 0


class _Dispatch(msgspec.Struct, frozen=True):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = 0


class _RocRecord(msgspec.Struct, frozen=True):
    start_timestamp: Ns
    end_timestamp: Ns
    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    correlation_id: _Correlation = _Correlation()
    dispatch_info: _Dispatch = _Dispatch()
    stream_id: _Handle | None = None
    dst_agent_id: _Handle = _Handle()
    bytes: int | None = None


class _BufferRecords(msgspec.Struct, frozen=True):
    kernel_dispatch: list[_RocRecord] = []
    memory_copy: list[_RocRecord] = []
    hip_api: list[_RocRecord] = []
    hsa_api: list[_RocRecord] = []
    rccl_api: list[_RocRecord] = []
    marker_api: list[_RocRecord] = []


class _RecordKind(msgspec.Struct, frozen=True):
    kind: str = ""
    operations: list[str] = []


class _Marker(msgspec.Struct, frozen=True):
    key: int = 0
    value: str = ""


class _RocStrings(msgspec.Struct, frozen=True):
    buffer_records: list[_RecordKind] = []
    marker_api: list[_Marker] = []


class _RocAgent(msgspec.Struct, frozen=True):
    id: _Handle = _Handle()
    type: int = 0
    product_name: str = ""
    name: str = ""


class _Symbol(msgspec.Struct, frozen=True):
    kernel_id: int = 0
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Tool(msgspec.Struct, frozen=True):
    metadata: dict[str, Any] = {}
    agents: list[_RocAgent] = []
    strings: _RocStrings = _RocStrings()
    kernel_symbols: list[_Symbol] = []
    buffer_records: _BufferRecords = _BufferRecords()


class _Results(msgspec.Struct, frozen=True):
    tools: list[_Tool] = msgspec.field(name="rocprofiler-sdk-tool", default_factory=list)


def is_rocprof_json(path: Path) -> bool:
    """Whether the file at `path`, compressed or not, begins as the JSON of rocprofv3 or of the first rocprof does."""
    begin = head(path, _HEAD)
    return any(begins.match(begin) for begins in (_BEGIN, rocprof_chrome.BEGIN))


def processes(path: Path) -> list[Process]:
    """The processes that used a GPU. Raises InputError where the file is malformed, or larger than the memory limit."""
    raw = content(path, memory_limit() // _GROWTH)
    text = raw.decode(errors="replace")  # Names of kernels may be no UTF-8.
    try:
        if rocprof_chrome.BEGIN.match(raw):
            found = rocprof_chrome.processes_of_rows(text)
        else:
            found = [_process(tool) for tool in msgspec.json.decode(text, type=_Results).tools]
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            f"is malformed JSON of rocprof: {error}", path=path, remedy="Copy or export it again."
        ) from error
    return [one for one in found if any("stream" in row.args for row in one.rows)]


def _process(tool: _Tool) -> Process:
    pid = tool.metadata.get("pid")
    node = tool.metadata.get("node")
    gpus = [agent for agent in tool.agents if agent.type == _GPU]
    process = Process(pid if isinstance(pid, int) else 0)
    process.rows += [*_work(tool, {agent.id.handle: number for number, agent in enumerate(gpus)})]
    process.rows += [*_calls(tool, process.pid)]
    process.devices = {number: agent.product_name or agent.name for number, agent in enumerate(gpus)}
    host = node.get("hostname") if isinstance(node, dict) else None
    process.host = host if isinstance(host, str) else None
    return process


def _work(tool: _Tool, gpus: dict[int, int]) -> Iterator[ForeignEvent]:
    """Kernels and copies. Streams are numbered in order of appearance where the file names queues only."""
    kernels = {symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name for symbol in tool.kernel_symbols}
    queues: dict[tuple[int, int], int] = {}
    for record in tool.buffer_records.kernel_dispatch:
        where = record.dispatch_info
        device = gpus.get(where.agent_id.handle, 0)
        queue = queues.setdefault((device, where.queue_id.handle), len(queues))
        stream = record.stream_id.handle if record.stream_id is not None else queue
        yield _on_gpu("kernel", kernels.get(where.kernel_id) or "kernel", record, device, stream)
    for record in tool.buffer_records.memory_copy:
        stream = record.stream_id.handle if record.stream_id is not None else 0
        name = _operation(tool, record).removeprefix("MEMORY_COPY_").replace("_", " ").title().replace(" ", "")
        device = gpus.get(record.dst_agent_id.handle, 0)
        yield _on_gpu("gpu_memcpy", f"Memcpy {name}".strip(), record, device, stream)


def _on_gpu(category: str, name: str, record: _RocRecord, device: int, stream: int) -> ForeignEvent:
    args = {"device": device, "stream": stream, "correlation": record.correlation_id.internal, "bytes": record.bytes}
    return ForeignEvent(category, name, record.start_timestamp, record.end_timestamp, device, stream, args)


def _calls(tool: _Tool, pid: int) -> Iterator[ForeignEvent]:
    """Calls of HIP (of HSA where there is none) and RCCL, and roctx ranges."""
    records = tool.buffer_records
    ranges = {marker.key: marker.value for marker in tool.strings.marker_api}
    for category, of_kind in (("cuda_runtime", records.hip_api or records.hsa_api), ("cpu_op", records.rccl_api)):
        for record in of_kind:
            yield _on_thread(category, _operation(tool, record) or "call", record, pid)
    for record in records.marker_api:
        name = ranges.get(record.correlation_id.internal)
        if name and _kind(tool, record).kind == _RANGES:
            yield _on_thread("cpu_op", name, record, pid)


def _on_thread(category: str, name: str, record: _RocRecord, pid: int) -> ForeignEvent:
    args = {"correlation": record.correlation_id.internal if category == "cuda_runtime" else None}
    return ForeignEvent(category, name, record.start_timestamp, record.end_timestamp, pid, record.thread_id, args)


def _kind(tool: _Tool, record: _RocRecord) -> _RecordKind:
    kinds = tool.strings.buffer_records
    return kinds[record.kind] if 0 <= record.kind < len(kinds) else _RecordKind()


def _operation(tool: _Tool, record: _RocRecord) -> str:
    names = _kind(tool, record).operations
    return names[record.operation] if 0 <= record.operation < len(names) else ""
