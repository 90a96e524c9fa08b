"""Profiles of JAX, made by hand after `xplane.proto`."""

from collections.abc import Iterable, Sequence
from typing import Any

from tests.cases.protobuf import message

NS = 1_712_000_000_000_000_000
PS = 1000

Event = tuple[str, float, float, dict[str, Any]]
"""(name, start in µs, duration in µs, stats)."""


def plane(name: str, lines: Iterable[tuple[int, str, Sequence[Event]]], **stats: Any) -> bytes:
    """A plane of (id, name, events) of its lines. Lines come before the names that they refer to."""
    events: dict[str, int] = {}
    names: dict[str, int] = {}

    def stat(key: str, value: Any) -> bytes:
        number = names.setdefault(key, len(names) + 1)
        return message((1, number), (5 if isinstance(value, str) else 4, value))

    written = []
    for number, title, of_line in lines:
        fields = [
            message(
                (1, events.setdefault(called, len(events) + 1)),
                (2, int(start * 1_000_000)),
                (3, int(took * 1_000_000)),
                *((4, stat(key, value)) for key, value in described.items()),
            )
            for called, start, took, described in of_line
        ]
        written.append(message((1, number), (2, title), (3, 0), *((4, one) for one in fields)))
    of_plane = [(6, stat(key, value)) for key, value in stats.items()]
    return message(
        (2, name),
        *((3, line) for line in written),
        *((4, message((1, number), (2, message((1, number), (2, called))))) for called, number in events.items()),
        *((5, message((1, number), (2, message((1, number), (2, called))))) for called, number in names.items()),
        *of_plane,
    )


def space(*planes: bytes, host: str = "node7") -> bytes:
    return message(*((1, one) for one in planes), (4, host))


def gpu_job(devices: int = 2, steps: int = 6, *, marked: bool = True) -> bytes:
    """A host that trains on several GPUs: in each step of a millisecond a GEMM (300 µs, 600 µs on GPU 1), an all-reduce that
    ends together, and a copy to the host."""
    host: list[Event] = []
    streams: list[dict[int, list[Event]]] = [{13: [], 20: []} for _ in range(devices)]
    for step in range(steps):
        begin = 1000.0 * step
        if marked:
            host.append(("train", begin, 1000, {"step_num": step, "_r": 1}))
        host += [("PjitFunction(step)", begin + 10, 200, {}), ("$train.py:12 main", begin + 5, 900, {})]
        for device in range(devices):
            number, took = 100 * step + 10 * device, 600 if device == 1 else 300
            for place, moment in enumerate((20, 30, 40)):
                called = {"correlation_id": number + place}
                host.append(("cuLaunchKernel (CudaGraph:3)", begin + moment + 3 * device, 2, called))
            streams[device][13] += [
                ("gemm_fusion", begin + 60, took, {"correlation_id": number, "hlo_op": "fusion.1"}),
                (
                    "MemcpyD2H",
                    begin + 820,
                    10,
                    {"correlation_id": number + 2, "memcpy_details": "kind_src:device size:4096"},
                ),
            ]
            reduced = ("ncclDevKernel_AllReduce_Sum_f32", begin + 60 + took, 740 - took, {"correlation_id": number + 1})
            streams[device][20].append(reduced)
    host.sort(key=lambda event: (event[1], -event[2]))
    planes = [
        plane(
            f"/device:GPU:{device}",
            [(number, f"Stream #{number}(Compute)", events) for number, events in of_device.items()]
            + [(900, "XLA Modules", [("jit_step", 0.0, 500.0, {})])],
            gpu_device_name="NVIDIA H100",
        )
        for device, of_device in enumerate(streams)
    ]
    planes.append(plane("/host:CPU", [(-77, "python", host), (5, "idle", [("end: x", 1.0, 1.0, {})])], process_id=41))
    return space(*planes, plane("Task Environment", [], profile_start_time=NS))
