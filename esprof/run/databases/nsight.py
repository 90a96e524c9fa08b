"""Exports of Nsight Systems (`nsys export --type sqlite`): kernels, copies, runtime calls and NVTX ranges.

The tables are those of the SQLite schema reference in the user guide of Nsight Systems.
"""

import re
from collections.abc import Iterator
from typing import Any

from esprof.run.databases.database import Database
from esprof.run.databases.processes import ForeignEvent, Process

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES, _FILLS, _CALLS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("MEMCPY", "MEMSET", "RUNTIME"))
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_STRINGS = "StringIds"
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""`CUpti_ActivityMemcpyKind`."""
_PUSH_POP, _START_END = 59, 60
"""`eventType` of ranges in NVTX_EVENTS."""
_VERSION = re.compile(r"_v\d{4,}$")
"""End of a runtime call's name, such as `cudaLaunchKernel_v7000`."""
_WORK = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")


def processes(database: Database) -> list[Process]:
    """The processes that used a GPU. Other processes, such as the launcher, are left out."""
    strings = database.texts(_STRINGS, "id", "value")
    found: dict[int, Process] = {}
    for pid, row in _work(database, strings):
        found.setdefault(pid, Process(pid)).rows.append(row)
    for pid, row in _on_threads(database, strings):
        if pid in found:
            found[pid].rows.append(row)
    base = next((int(epoch) for (epoch,) in database.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))), 0)
    devices = database.texts("TARGET_INFO_GPU", "id", "name")
    environment = dict(database.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")))
    for process in found.values():
        process.base_ns, process.devices, process.host = base, devices, environment.get("Hostname")
    return list(found.values())


def _work(database: Database, strings: dict[int, str]) -> Iterator[tuple[int, ForeignEvent]]:
    for *where, long, short in database.rows(KERNELS, (*_WORK, "demangledName", "shortName")):
        yield _on_gpu("kernel", strings.get(long) or strings.get(short) or "kernel", where)
    for *where, kind, size in database.rows(_COPIES, (*_WORK, "copyKind", "bytes")):
        yield _on_gpu("gpu_memcpy", f"Memcpy {_COPY_KINDS.get(kind, 'other')}", where, size)
    for *where, size in database.rows(_FILLS, (*_WORK, "bytes")):
        yield _on_gpu("gpu_memset", "Memset", where, size)
    for *where, graph in database.rows(_GRAPHS, (*_WORK, "graphId")):
        yield _on_gpu("kernel", f"CUDA graph {graph}", where)


def _on_gpu(category: str, name: str, where: list[Any], size: int | None = None) -> tuple[int, ForeignEvent]:
    start, end, process, device, stream, correlation = where
    args = {"device": device, "stream": stream, "correlation": correlation, "bytes": size}
    return _pid(process), ForeignEvent(category, name, start, end, device, stream, args)


def _on_threads(database: Database, strings: dict[int, str]) -> Iterator[tuple[int, ForeignEvent]]:
    for start, end, thread, correlation, name in database.rows(
        _CALLS, ("start", "end", "globalTid", "correlationId", "nameId")
    ):
        called = _VERSION.sub("", strings.get(name, "call"))
        category = "cuda_runtime" if called.startswith("cuda") else "cuda_driver"
        yield (
            _pid(thread),
            ForeignEvent(category, called, start, end, _pid(thread), _tid(thread), {"correlation": correlation}),
        )
    for start, end, kind, text, number, thread in database.rows(
        "NVTX_EVENTS", ("start", "end", "eventType", "text", "textId", "globalTid")
    ):
        named = text or strings.get(number)
        if named and isinstance(end, int) and end >= start and kind in (_PUSH_POP, _START_END, None):
            category = "user_annotation" if kind == _START_END else "cpu_op"
            yield _pid(thread), ForeignEvent(category, named, start, end, _pid(thread), _tid(thread), {})


def _pid(serialized: int | None) -> int:
    """Process in a `globalPid` or `globalTid`: its middle 24 bits."""
    return (serialized or 0) >> 24 & 0xFFFFFF


def _tid(serialized: int | None) -> int:
    return (serialized or 0) & 0xFFFFFF
