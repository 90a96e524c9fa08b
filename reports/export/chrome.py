"""The trace event format of Chrome, as torch.profiler writes it: esprof, Perfetto and other tools for its traces read it.

Names of processes begin with `rank N`, by which esprof knows the ranks of a file. What torch.profiler does not record has
categories that begin with `esprof,`, and is not read back.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, BinaryIO

import msgspec

from esprof.analyzers.tracks.content import Exported
from esprof.analyzers.tracks.track import ArrowEnd, ArrowKind, CounterTrack, Track, TrackProcess
from esprof.core.types import NS_PER_US, Ns
from esprof.run.kineto.categories import ESPROF

_FIRST_TID = 1
_PHASE = {ArrowEnd.SOURCE: "s", ArrowEnd.PASSED: "t", ArrowEnd.TARGET: "f"}
_SHAPES = "Input Dims"
_ARROW_NAME = {ArrowKind.LAUNCH: "ac2g"}
"""torch.profiler's name of an arrow from a launch to its work."""


def write_chrome(exported: Exported, file: BinaryIO) -> None:
    """Write the document, one process after the other."""
    base_ns = exported.dfg.t0_ns
    file.write(_head(exported, base_ns))
    rows = _rows(exported.processes(), base_ns)
    file.write(next(rows))
    for row in rows:
        file.write(b",\n" + row)
    file.write(b"\n]}\n")


def _head(exported: Exported, base_ns: Ns) -> bytes:
    """The document up to the list of rows."""
    run, ranks = exported.replayed.run, exported.ranks
    groups = [
        {"pg_name": group.name, "pg_desc": group.description, "backend_config": group.backend, "ranks": group.ranks}
        for group in exported.groups
    ]
    document = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "distributedInfo": {"rank": ranks[0], "world_size": run.world_size, "pg_config": groups},
    }
    return msgspec.json.encode(document).removesuffix(b"}") + b',"traceEvents":[\n'


def _rows(processes: Iterable[TrackProcess], base_ns: Ns) -> Iterator[bytes]:
    encode, tids = msgspec.json.Encoder().encode, count(_FIRST_TID)
    for order, process in enumerate(processes):
        of_process = {"ph": "M", "ts": 0, "pid": process.name}
        name = f"{process.name} {process.about}".strip()
        yield encode(of_process | {"name": "process_name", "args": {"name": name}})
        yield encode(of_process | {"name": "process_sort_index", "args": {"sort_index": order}})
        for track in process.tracks:
            tid = next(tids)
            of_thread = of_process | {"tid": tid}
            yield encode(of_thread | {"name": "thread_name", "args": {"name": track.name}})
            yield encode(of_thread | {"name": "thread_sort_index", "args": {"sort_index": tid}})
            yield from map(encode, _track(track, process, tid, base_ns))
        for counter in process.counters:
            yield from map(encode, _counter(counter, process, base_ns))


def _track(track: Track, process: TrackProcess, tid: int, base_ns: Ns) -> Iterator[dict[str, Any]]:
    slices, arrows = track.slices, track.arrows.by_slice()
    categories = [category if process.recorded else f"{ESPROF}{category}" for category in slices.categories]
    starts, ends = slices.start_ns.tolist(), slices.end_ns.tolist()
    names, of_category = slices.name.tolist(), slices.category.tolist()
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        args: dict[str, Any] = {key: values[at] for key, values in slices.args.items() if values[at] is not None}
        if _SHAPES in args:
            args[_SHAPES] = _raw(str(args[_SHAPES]))
        yield {
            "ph": "X",
            "cat": categories[of_category[at]],
            "name": slices.names[names[at]],
            "pid": process.name,
            "tid": tid,
            "ts": _us(start - base_ns),
            "dur": _us(end - start),
            "args": args,
        }
        for flow, arrow_end, kind in arrows.get(at, ()):
            yield _arrow(flow, arrow_end, kind) | {"pid": process.name, "tid": tid, "ts": _us(start - base_ns)}


def _arrow(flow: int, end: ArrowEnd, kind: ArrowKind) -> dict[str, Any]:
    """An end of an arrow, which binds to the slice that it follows in the file."""
    name = _ARROW_NAME.get(kind, f"{ESPROF}{kind}")
    return {"ph": _PHASE[end], "id": flow, "cat": name, "name": name} | ({"bp": "e"} if end is ArrowEnd.TARGET else {})


def _counter(counter: CounterTrack, process: TrackProcess, base_ns: Ns) -> Iterator[dict[str, Any]]:
    for at, value in zip(counter.at_ns.tolist(), counter.values.tolist(), strict=True):
        yield {"ph": "C", "name": counter.name, "pid": process.name, "ts": _us(at - base_ns), "args": {"bytes": value}}


def _raw(shapes: str) -> msgspec.Raw | str:
    """Shapes as the lists that torch.profiler writes, or as text where they are none."""
    try:
        msgspec.json.decode(shapes)
    except msgspec.DecodeError:
        return shapes
    return msgspec.Raw(shapes.encode())


def _us(ns: Ns) -> float:
    return ns / NS_PER_US
