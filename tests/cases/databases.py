"""Databases of other profilers, made by hand after their published schemas."""

import json
import sqlite3
from pathlib import Path

SESSION = "_0000e2c3_1b5a"
"""End of the names of rocprofv3's tables."""

STEPS = 6


def _write(path: Path, tables: dict[str, tuple[str, list[tuple]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        for name, (columns, rows) in tables.items():
            database.execute(f'CREATE TABLE "{name}" ({columns})')
            if rows:
                database.executemany(f'INSERT INTO "{name}" VALUES ({",".join("?" * len(rows[0]))})', rows)
    database.close()
    return path


def write_nsight(path: Path, ranks=(0, 1), *, marked=True, device_of=lambda rank: rank, slow=1, **more) -> Path:
    """A job of data-parallel ranks under Nsight Systems, in one export: each step of 10 ms has a kernel (3 ms, 6 ms on rank
    `slow`), an all-reduce that ends together, and a copy to the host."""
    strings = {1: "gemm", 2: "ncclDevKernel_AllReduce_Sum_f32", 3: "cudaLaunchKernel_v7000", 4: "cudaMemcpyAsync_v3020"}
    kernels, calls, copies, ranges = [], [], [], []
    for rank in ranks:
        process = (1 << 56) | ((100 + rank) << 24)
        thread, device = process | (200 + rank), device_of(rank)
        for step in range(STEPS):
            at, took = step * 10_000_000, 6_000_000 if rank == slow else 3_000_000
            work = (at + 1_000_000, at + 1_000_000 + took, 7, 1), (at + 1_000_000 + took, at + 8_000_000, 9, 2)
            for number, (start, end, stream, name) in enumerate(work):
                kernels.append((start, end, device, stream, 10 * step + number, process, name, name))
                calls.append(
                    (at + 900_000 + 50_000 * number, at + 940_000 + 50_000 * number, thread, 10 * step + number, 3)
                )
            copies.append((at + 8_000_000, at + 8_100_000, device, 7, 10 * step + 2, process, 2, 4096))
            calls.append((at + 1_000_000, at + 8_110_000, thread, 10 * step + 2, 4))
            if marked:
                ranges.append((at, at + 10_000_000, 59, f"step {step}", None, thread))
                ranges.append((at + 800_000, at + 990_000, 59, None, 1, thread))
    return _write(
        path,
        {
            "StringIds": ("id INTEGER PRIMARY KEY, value TEXT", list(strings.items())),
            "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs INTEGER, utcTime TEXT", [(1_712_000_000_000_000_000, "")]),
            "TARGET_INFO_GPU": ("id INTEGER, name TEXT", [(0, "NVIDIA H100"), (1, "NVIDIA H100")]),
            "TARGET_INFO_SYSTEM_ENV": ("name TEXT, value TEXT", [("Hostname", "node7")]),
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName",
                kernels,
            ),
            "CUPTI_ACTIVITY_KIND_RUNTIME": ("start, end, globalTid, correlationId, nameId", calls),
            "CUPTI_ACTIVITY_KIND_MEMCPY": (
                "start, end, deviceId, streamId, correlationId, globalPid, copyKind, bytes",
                copies,
            ),
            "NVTX_EVENTS": ("start, end, eventType, text, textId, globalTid", ranges),
            **more,
        },
    )


def write_rocpd(path: Path) -> Path:
    """One process under rocprofv3: a roctx range with a launch, its kernel, and a copy without a call."""
    strings = [(1, "hipLaunchKernel"), (2, "forward"), (3, "MEMORY_COPY_HOST_TO_DEVICE")]
    tables = {
        "rocpd_string": ("id, string", strings),
        "rocpd_info_process": ("id, pid", [(1, 4711)]),
        "rocpd_info_thread": ("id, tid", [(1, 4712)]),
        "rocpd_info_agent": ("id, type, type_index", [(1, "CPU", 0), (2, "GPU", 3)]),
        "rocpd_info_kernel_symbol": ("id, display_name", [(5, "Cijk_Ailk(float*)")]),
        "rocpd_event": ("id, stack_id", [(1, 70), (2, 0), (3, 70), (4, None)]),
        "rocpd_region": (
            "pid, tid, start, end, name_id, event_id",
            [(1, 1, 1_000, 2_000, 1, 1), (1, 1, 500, 9_000, 2, 2)],
        ),
        "rocpd_kernel_dispatch": (
            "pid, tid, start, end, event_id, agent_id, kernel_id, stream_id",
            [(1, 1, 3_000, 8_000, 3, 2, 5, 1)],
        ),
        "rocpd_memory_copy": (
            "pid, tid, start, end, event_id, dst_agent_id, name_id, size, stream_id",
            [(1, 1, 8_000, 8_500, 4, 2, 3, 4096, None)],
        ),
    }
    return _write(path, {name + SESSION: table for name, table in tables.items()})


def write_rpd(path: Path) -> Path:
    """The same under RPD."""
    strings = [(1, "hipLaunchKernel"), (2, "Cijk_Ailk"), (3, "KernelExecution"), (4, "CopyHostToDevice"), (5, "")]
    return _write(
        path,
        {
            "rocpd_string": ("id, string", strings),
            "rocpd_api": ("id, pid, tid, start, end, apiName_id", [(9, 4711, 4712, 1_000, 2_000, 1)]),
            "rocpd_api_ops": ("id, api_id, op_id", [(1, 9, 30)]),
            "rocpd_op": (
                "id, gpuId, queueId, start, end, description_id, opType_id",
                [(30, 3, 1, 3_000, 8_000, 2, 3), (31, 3, 2, 8_000, 8_500, 5, 4)],
            ),
        },
    )


def write_rocprof_json(path: Path, pids=(4711,), *, streams=True) -> Path:
    """The same as JSON of rocprofv3, for each of `pids` on a GPU of its own; without `streams`, queues alone are known."""
    kinds = [
        {"kind": "NONE", "operations": []},
        {"kind": "HIP_RUNTIME_API", "operations": ["", "hipLaunchKernel"]},
        {"kind": "KERNEL_DISPATCH", "operations": []},
        {"kind": "MEMORY_COPY", "operations": ["", "MEMORY_COPY_HOST_TO_DEVICE"]},
        {"kind": "MARKER_CORE_RANGE_API", "operations": []},
        {"kind": "MARKER_CORE_API", "operations": []},
    ]

    def record(kind, start, end, correlation, **more):
        known = {
            "kind": kind,
            "operation": 1,
            "thread_id": 4712,
            "correlation_id": {"internal": correlation, "external": 0},
        }
        return known | {"start_timestamp": start, "end_timestamp": end} | more

    def tool(number, pid):
        agent, on_stream = {"handle": 900 + number}, {"stream_id": {"handle": 1}} if streams else {}
        dispatch = {"agent_id": agent, "queue_id": {"handle": 1 << 60}, "kernel_id": 5}
        return {
            "metadata": {"pid": pid, "node": {"hostname": "mi300"}},
            "agents": [{"id": {"handle": 7}, "type": 1, "name": "EPYC"}]
            + [{"id": {"handle": 900 + gpu}, "type": 2, "product_name": "AMD Instinct MI300X"} for gpu in range(4)],
            "strings": {
                "buffer_records": kinds,
                "marker_api": [{"key": 69, "value": "forward"}, {"key": 68, "value": "a mark"}],
            },
            "kernel_symbols": [{"kernel_id": 5, "formatted_kernel_name": "Cijk_Ailk(float*)"}],
            "buffer_records": {
                "hip_api": [record(1, 1_000, 2_000, 70)],
                "kernel_dispatch": [record(2, 3_000, 8_000, 70, dispatch_info=dispatch, **on_stream)],
                "memory_copy": [record(3, 8_000, 8_500, 71, dst_agent_id=agent, bytes=4096, **on_stream)],
                "marker_api": [record(4, 500, 9_000, 69), record(5, 600, 600, 68)],
            },
        }

    tools = [tool(number, pid) for number, pid in enumerate(pids)]
    path.write_text(json.dumps({"rocprofiler-sdk-tool": tools}))
    return path


def write_rocprof_chrome(path: Path) -> Path:
    """The same as JSON of the first rocprof, on GPU 3: all values are text."""

    def x(pid, tid, name, start, end, process=4711):
        known = {"BeginNs": str(start), "EndNs": str(end), "pid": str(process), "Data": ""}
        times = {"ts": str(start // 1000), "dur": str((end - start) // 1000 or 1)}
        return {"ph": "X", "name": name, "pid": str(pid), "tid": str(tid)} | times | {"args": known}

    labels = {1: "0 CPU HSA API", 2: "1 CPU HIP API", 3: "2 Markers and Ranges", 6: "4 COPY", 9: "7 GPU3"}
    rows = [
        {},
        *({"args": {"name": label}, "ph": "M", "pid": pid, "name": "process_name"} for pid, label in labels.items()),
        x(1, 4712, "hsa_queue_create", 100, 200),
        x(2, 4712, "hipLaunchKernel", 1_000, 2_000),
        x(3, 4712, "forward", 500, 9_000),
        x(9, 1, "Cijk_Ailk", 3_000, 8_000),
        x(6, 0, "hcCommandMemcpyHostToDevice", 8_000, 8_500),
        {"ts": 1, "ph": "s", "cat": "DataFlow", "id": 0, "pid": 2, "tid": 4712, "name": "dep"},
        {"ts": 3, "ph": "t", "cat": "DataFlow", "id": 0, "pid": 9, "tid": 1, "name": "dep"},
    ]
    lines = "\n,".join(map(json.dumps, rows))
    path.write_text(f'{{ "traceEvents":[{lines}\n], "otherData": {{"version": "1"}}}}')
    return path
