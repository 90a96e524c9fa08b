"""Databases of rocprofv3 (`rocpd`) and of the ROCm tracer RPD: kernels, copies, HIP calls and roctx ranges.

The tables are those of `rocpd_tables.sql` in rocprofiler-sdk, whose names end in the id of the session, and of
`tableSchema.cmd` in rocmProfileData.
"""

from collections.abc import Iterator
from typing import Any

from esprof.run.databases.database import Database
from esprof.run.databases.processes import ForeignEvent, Process

DISPATCHES, OPS = "rocpd_kernel_dispatch", "rocpd_op"
_WHERE = ("pid", "tid", "start", "end", "event_id")


def processes(database: Database) -> list[Process]:
    """The processes that used a GPU."""
    found: dict[int, Process] = {}
    ended = [name.removeprefix(DISPATCHES) for name in database.tables if name.startswith(DISPATCHES)]
    events = [one for session in ended for one in _session(database, session)] if ended else list(_rpd(database))
    on_gpu = {pid for pid, row in events if "stream" in row.args}
    for pid, row in events:
        if pid in on_gpu:
            found.setdefault(pid, Process(pid)).rows.append(row)
    return list(found.values())


def _session(database: Database, session: str) -> Iterator[tuple[int, ForeignEvent]]:
    """(process, event) of the tables of one session of rocprofv3. A call and its work share a stack id."""

    def texts(table: str, value: str) -> dict[int, Any]:
        return dict(database.rows(f"rocpd_{table}{session}", ("id", value)))

    strings, kernels = texts("string", "string"), texts("info_kernel_symbol", "display_name")
    pids, tids, agents = texts("info_process", "pid"), texts("info_thread", "tid"), texts("info_agent", "type_index")
    stacks = texts("event", "stack_id")
    for pid, _, start, end, event, agent, kernel, stream in database.rows(
        DISPATCHES + session, (*_WHERE, "agent_id", "kernel_id", "stream_id")
    ):
        device, name = agents.get(agent, agent), kernels.get(kernel) or "kernel"
        args = {"device": device, "stream": stream, "correlation": stacks.get(event)}
        yield pids.get(pid, pid), ForeignEvent("kernel", name, start, end, device, stream, args)
    for pid, _, start, end, event, agent, name, size, stream in database.rows(
        f"rocpd_memory_copy{session}", (*_WHERE, "dst_agent_id", "name_id", "size", "stream_id")
    ):
        device = agents.get(agent) or 0
        args = {"device": device, "stream": stream or 0, "correlation": stacks.get(event), "bytes": size}
        yield (
            pids.get(pid, pid),
            ForeignEvent("gpu_memcpy", strings.get(name) or "Memcpy", start, end, device, stream, args),
        )
    for pid, tid, start, end, event, name in database.rows(f"rocpd_region{session}", (*_WHERE, "name_id")):
        called, process = strings.get(name) or "region", pids.get(pid, pid)
        yield process, _call(called, start, end, process, tids.get(tid, tid), stacks.get(event) or None)


def _rpd(database: Database) -> Iterator[tuple[int, ForeignEvent]]:
    """(process, event) of a database of RPD, whose work has the process of the call that launched it."""
    strings = database.texts("rocpd_string", "id", "string")
    launch = {op: api for api, op in database.rows("rocpd_api_ops", ("api_id", "op_id"))}
    pid_of: dict[int, int] = {}
    for number, pid, tid, start, end, name in database.rows(
        "rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id")
    ):
        pid_of[number] = pid
        yield pid, _call(strings.get(name) or "call", start, end, pid, tid, number)
    only = next(iter(pid_of.values()), 0)
    for number, device, queue, start, end, name, kind in database.rows(
        OPS, ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    ):
        what = strings.get(kind, "")
        category = "gpu_memcpy" if what.startswith("Copy") else "gpu_memset" if what.startswith("Fill") else "kernel"
        args = {"device": device, "stream": queue, "correlation": launch.get(number)}
        row = ForeignEvent(category, strings.get(name) or what or "kernel", start, end, device, queue, args)
        yield pid_of.get(launch.get(number, -1), only), row


def _call(name: str, start: int, end: int, pid: int, tid: int | None, correlation: int | None) -> ForeignEvent:
    is_runtime = name.startswith(("hip", "hsa", "__hip"))
    return ForeignEvent(
        "cuda_runtime" if is_runtime else "cpu_op", name, start, end, pid, tid, {"correlation": correlation}
    )
