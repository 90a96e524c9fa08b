"""Traces of torch_npu, made by hand as its `trace_view.json` is: a bare list, times as text, processes by name."""

from typing import Any

US = 1_712_000_000_000_000
PYTHON, CANN, DEVICE, COMMUNICATION, OVERLAP = 41, 1300, 1301, 1302, 1303
_NAMES = {
    PYTHON: "Python",
    CANN: "CANN",
    DEVICE: "Ascend Hardware",
    COMMUNICATION: "Communication",
    OVERLAP: "Overlap Analysis",
}


def _x(pid: int, tid: int, name: str, at: float, took: float, cat: str | None = None, **args: Any) -> dict[str, Any]:
    row = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{US + at:.3f}", "dur": took, "args": args}
    return row | ({"cat": cat} if cat else {})


def _flow(source: dict[str, Any], target: dict[str, Any], number: int) -> list[dict[str, Any]]:
    ends = [("s", source), ("f", target)]
    return [
        {"ph": phase, "bp": "e", "name": "torch_to_npu", "id": number, "cat": "async_npu"}
        | {key: row[key] for key in ("pid", "tid", "ts")}
        for phase, row in ends
    ]


def trace_view(rank: int = 0, steps: int = 5, *, linked: str = "connection") -> list[dict[str, Any]]:
    """One rank of a data-parallel job, of which rank 1 is late: in each step of a millisecond a multiplication, and an
    all-reduce with its tasks. Kernels are `linked` to their launches by `connection` ids or by a `flow`."""
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in _NAMES.items()
    ]
    for step in range(steps):
        begin, arrive, number = 1000 * step, 400 + 50 * rank, 10 * step
        ids = [{"connection_id": number + 1}, {"connection_id": number + 2}] if linked == "connection" else [{}, {}]
        host = {"Sequence number": step, "Fwd thread id": 0}
        operation = _x(PYTHON, PYTHON, "aten::mm", begin + 10, 100, "cpu_op", **host, **{"Input Dims": "4,8;8,2"})
        gemm = {"Task Type": "AI_CORE", "Stream Id": 5, "Task Id": step} | ids[0]
        kernel = _x(DEVICE, 5, "aclnnMatmul_MatMulV2", begin + 60, 300, **gemm)
        reduced = _x(COMMUNICATION, 3, f"hcom_allReduce__428_{step}_1", begin + arrive, 700 - arrive, **ids[1])
        rows += [
            _x(PYTHON, PYTHON, f"ProfilerStep#{step}", begin, 1000, "user_annotation"),
            operation,
            _x(CANN, PYTHON, "AscendCL@aclnnMatmul", begin + 30, 30),
            _x(CANN, PYTHON, "Node@launch", begin + 50, 5, **ids[0]),
            kernel,
            _x(CANN, PYTHON, "Node@launch", begin + 200, 5, **ids[1]),
            reduced,
            _x(COMMUNICATION, 4, "Notify_Wait", begin + arrive, 100),
            _x(DEVICE, 11, "SDMA", begin + arrive, 100, **({"Task Type": "SDMA", "Stream Id": 11} | ids[1])),
            _x(DEVICE, 5, "EVENT_WAIT", begin + 400, 300, **{"Task Type": "EVENT_WAIT", "Stream Id": 5}),
            _x(CANN, PYTHON, "AscendCL@aclrtSynchronizeStream", begin + 705, 5),
            _x(OVERLAP, 0, "Computing", begin + 60, 300),
        ]
        if linked == "flow":
            rows += _flow(operation, kernel, number)
    return rows
