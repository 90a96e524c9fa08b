"""The profile of a host as traces, one for each of its devices."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from esprof.core.errors import InputError
from esprof.core.types import Ns
from esprof.run.kineto.reader import Trace, trace_of_rows
from esprof.run.xplane.space import (
    COPY,
    CORRELATION,
    DEVICE_NAMES,
    PROCESS,
    STARTED,
    STEP,
    Event,
    Line,
    Plane,
    Space,
)

_DEVICE = re.compile(r"/device:(\w+):(\d{1,6})$")
_HOST = re.compile(r"/host:(CPU|CUPTI|ROCTRACER|python-tracer)$")
_GPU_STREAM = re.compile(r"Stream #(\d{1,9})")
"""Begins the names of the lines that hold a GPU's own work. Other lines of a GPU are views of it."""
_STREAMS = {"XLA Ops": 0, "Async XLA Ops": 1}
"""Lines with the work of other devices, such as TPUs, and the streams that they become."""
_STEPS = "Steps"
_PYTHON = re.compile(r"\$(.+):(\d+) (.+)$", re.DOTALL)
_MARKS = ("ThreadpoolListener::", "end: ")
"""Beginnings of the names of events that only mark a moment."""
_SIZE = re.compile(r"size:(\d{1,18})")
_COPY, _FILL = re.compile("memcpy", re.IGNORECASE), re.compile("memset", re.IGNORECASE)
_RUNTIME = re.compile(r"cu|hip|hsa")
_DETAIL = re.compile(r" \(CudaGraph:\d+\)$")
"""End of the name of a call: `cuGraphLaunch (CudaGraph:36)`."""


def traces_of(space: Space, path: Path) -> list[Trace]:
    """A trace for each device that did anything, with the events of the host; one trace for a host alone.

    Raises InputError if no plane has events.
    """
    devices = [plane for plane in space.planes if _DEVICE.match(plane.name) and any(_work(plane))]
    hosts = [plane for plane in space.planes if _HOST.match(plane.name) and any(line.events for line in plane.lines)]
    if not devices and not hosts:
        raise InputError("holds no event", path=path, remedy="Profile some steps: jax.profiler.trace(…).")
    started = (plane.stats.get(STARTED) for plane in space.planes)
    document = {
        "baseTimeNanoseconds": next((one for one in started if isinstance(one, int)), None),
        "host_name": next(iter(space.hosts), None),
    }
    on_host = list(_host_rows(hosts))
    if not devices:
        return [trace_of_rows(on_host, document)]
    return [_trace(on_host, device, document) for device in devices]


def _trace(on_host: list[dict[str, Any]], device: Plane, document: dict[str, Any]) -> Trace:
    rows = list(on_host)
    if not any(row["name"].startswith("ProfilerStep#") for row in rows):
        rows += _steps_of_device(device)
    name = next((device.stats[stat] for stat in DEVICE_NAMES if stat in device.stats), None)
    number = _number(device)
    properties = [{"id": number, "name": str(name)}] if name else []
    return trace_of_rows([*rows, *_device_rows(device)], document | {"deviceProperties": properties})


def _number(device: Plane) -> int:
    match = _DEVICE.match(device.name)
    return int(match[2]) if match else 0


def _host_rows(planes: list[Plane]) -> Iterator[dict[str, Any]]:
    """The events of threads. Ids of threads may be hashes; planes share them."""
    threads: dict[int, int] = {}
    pid = next((plane.stats[PROCESS] for plane in planes if PROCESS in plane.stats), 0)
    for line in (line for plane in planes for line in plane.lines):
        thread = threads.setdefault(line.id, len(threads) + 1)
        for event in line.events:
            if not event.name.startswith(_MARKS):
                category, name = _on_host(event)
                args = {"correlation": event.stats.get(CORRELATION)}
                yield _row(category, name, event, pid, thread) | {"args": args}


def _on_host(event: Event) -> tuple[str, str]:
    """(category, name) as torch.profiler has them."""
    if STEP in event.stats:
        return "user_annotation", f"ProfilerStep#{event.stats[STEP]}"
    if CORRELATION in event.stats and _RUNTIME.match(event.name):
        called = _DETAIL.sub("", event.name)
        return "cuda_driver" if re.match("cu[A-Z]", called) else "cuda_runtime", called
    if match := _PYTHON.match(event.name):
        return "python_function", f"{match[1]}({match[2]}): {match[3]}"
    return "cpu_op", event.name


def _device_rows(device: Plane) -> Iterator[dict[str, Any]]:
    number = _number(device)
    for stream, event in _work(device):
        category = "gpu_memcpy" if _COPY.match(event.name) else "gpu_memset" if _FILL.match(event.name) else "kernel"
        size = _SIZE.search(str(event.stats.get(COPY, "")))
        args = {"device": number, "stream": stream, "correlation": event.stats.get(CORRELATION)}
        args["bytes"] = int(size[1]) if size else None
        yield _row(category, event.name, event, number, stream) | {"args": args}


def _work(device: Plane) -> Iterator[tuple[int, Event]]:
    """(stream, event) of the work of a device."""
    for line in device.lines:
        if match := _GPU_STREAM.match(line.name):
            yield from ((int(match[1]), event) for event in line.events)
        elif line.name in _STREAMS:
            yield from ((_STREAMS[line.name], event) for event in _innermost(line))


def _innermost(line: Line) -> Iterator[Event]:
    """The events that contain no other: a loop also has an event of its own."""
    events = sorted(line.events, key=lambda event: (event.start_ns, -event.dur_ns))
    for event, after in zip(events, [*events[1:], None], strict=True):
        if after is None or after.start_ns >= event.start_ns + event.dur_ns:
            yield event


def _steps_of_device(device: Plane) -> Iterator[dict[str, Any]]:
    for line in device.lines:
        if line.name == _STEPS:
            for event in line.events:
                if event.name.isdecimal():
                    yield _row("user_annotation", f"ProfilerStep#{event.name}", event, 0, 1) | {"args": {}}


def _row(category: str, name: str, event: Event, pid: Any, tid: int) -> dict[str, Any]:
    times = {"ts": _us(event.start_ns), "dur": _us(event.dur_ns)}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid} | times


def _us(ns: Ns) -> msgspec.Raw:
    """Microseconds with all digits: a float cannot hold ns since 1970."""
    whole, rest = divmod(abs(ns), 1000)
    return msgspec.Raw(f"{'-' if ns < 0 else ''}{whole}.{rest:03}".encode())
