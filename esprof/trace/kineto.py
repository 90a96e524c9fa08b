"""Read one Kineto trace (`torch.profiler`, Chrome JSON, plain or gzip) into the event table.

Accepts what recorders since 2021 wrote: old and new category names, timestamps absolute or relative to
`baseTimeNanoseconds`, integer or fractional, string thread ids, a bare list of events, missing metadata.
"""

import gc
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from esprof.errors import InputError, unreadable
from esprof.trace import lenient
from esprof.trace.columns import Row, event_table
from esprof.trace.groups import named_groups
from esprof.trace.memory import memory_limit
from esprof.trace.run import MOST_RANKS, Group, Warning
from esprof.trace.schema import Table
from esprof.types import Bytes, Ns, Rank

_BYTES_AN_OBJECT: Bytes = 100
"""Memory that the smallest JSON object takes once it is decoded."""

_ABSOLUTE_US = 1e14
"""A timestamp above this is microseconds since the epoch; below, it is relative to `baseTimeNanoseconds`."""

_LATEST_US = 4e15
"""The year 2096. A later time, or a duration above `_ABSOLUTE_US`, is garbage, and would not fit int64 ns."""

_EXACT = re.compile(rb'"ts"\s*:\s*\d{15,}\.\d')
_LIST = re.compile(rb"\s*\[")
_NO_NUMBER = re.compile(rb'"\s*:\s*(?:[-+]?(?:inf(?:inity)?|nan)|N/A)\b', re.IGNORECASE)
"""Values that recorders of 2021 wrote for a bandwidth over no time; JSON has no such numbers."""

_RUNTIME = re.compile(r"(?P<name>.+)_(?:runtime|driver)$")
_KNOWN_RUNTIMES = ("cuda",)
"""ROCm's calls carry this category too."""

_UNKNOWN_ACCELERATORS = {
    "xpu": "Intel XPU",
    "mtia": "Meta MTIA",
    "hpu": "Intel Gaudi (HPU)",
    "glow": "Glow",
    "privateuse1": "an out-of-tree accelerator (PrivateUse1)",
}


@dataclass(frozen=True)
class Trace:
    """One rank's trace. `rank` and `world_size` are None where the file does not tell."""

    events: Table
    rank: Rank | None
    world_size: int | None
    groups: tuple[Group, ...]
    host: str | None
    devices: tuple[str, ...]
    versions: dict[str, str] = field(default_factory=dict)
    warnings: tuple[Warning, ...] = ()


class _Device(msgspec.Struct):
    id: int | None = None
    name: str = ""


class _PgConfig(msgspec.Struct):
    pg_name: str | int | None = None
    pg_desc: str | None = None
    backend_config: str | None = None
    ranks: list[int] | str | None = None


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    pg_config: list[_PgConfig] = []
    nccl_version: str | None = None


class _Document(msgspec.Struct, rename="camel"):
    trace_events: list[Row]
    device_properties: list[_Device] = []
    distributed_info: _Distributed | None = None
    base_time_nanoseconds: int | None = None
    host_name: str | None = msgspec.field(name="host_name", default=None)
    cuda_runtime_version: int | None = msgspec.field(name="cuda_runtime_version", default=None)


class _ExactRow(Row):
    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class _ExactDocument(_Document):
    trace_events: list[_ExactRow]  # type: ignore[assignment]


def read_trace(path: Path) -> Trace:
    """Read the trace at `path`.

    Raises InputError where it is truncated, no JSON, no trace, larger than the memory limit, or from an accelerator
    that esprof does not know.
    """
    with _no_collector():
        document, misfits = _decode(path, _content(path, memory_limit()))
        rows, times, lost = _timed_rows(document)
        _decline_unknown_accelerators(path, rows)
        info = document.distributed_info or _Distributed()
        world = info.world_size if 0 < (info.world_size or 0) <= MOST_RANKS else None
        groups = named_groups(
            (str(pg.pg_name), _members(pg, world), pg.backend_config, pg.pg_desc) for pg in info.pg_config
        )
        events, warnings = event_table(rows, times, groups)
    if not len(events):
        raise InputError(
            "holds no profiler event", path=path, remedy="Export it with torch.profiler (export_chrome_trace)."
        )
    used = {device for device in np.unique(events.ints("device")).tolist() if device >= 0}
    devices = tuple(device.name for device in document.device_properties if device.id in used)
    return Trace(
        events=events,
        rank=info.rank if 0 <= (info.rank or 0) < MOST_RANKS else None,
        world_size=world,
        groups=tuple(groups.values()),
        host=document.host_name,
        devices=devices,
        versions=_versions(document, info),
        warnings=warnings + misfits + lost,
    )


def _members(pg: _PgConfig, world: int | None) -> list[int] | str | None:
    """The ranks of a group; torch leaves the list empty for the group of all of them."""
    return list(range(world)) if pg.ranks == [] and world else pg.ranks


def _versions(document: _Document, info: _Distributed) -> dict[str, str]:
    known = {"nccl": info.nccl_version, "cuda_runtime": document.cuda_runtime_version}
    return {name: str(value) for name, value in known.items() if value is not None}


@contextmanager
def _no_collector() -> Iterator[None]:
    """Hold the cycle collector off: it would walk millions of young, acyclic rows again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _content(path: Path, limit: Bytes) -> bytes:
    try:
        raw = path.read_bytes() if path.stat().st_size <= limit else None
    except OSError as error:
        raise unreadable(path, error) from error
    if raw is not None and raw[:2] == b"\x1f\x8b":
        raw = _gunzip(path, raw, limit)
    # Small objects grow most on decoding: a file of nothing but `{}` to thirty times its size.
    if raw is None or max(len(raw), raw.count(b"{") * _BYTES_AN_OBJECT) > limit:
        raise InputError(
            f"is larger than the memory limit of {limit / 2**30:.1f} GiB (uncompressed)",
            path=path,
            remedy="Record fewer steps a window, or raise ESPROF_MEMORY_LIMIT (bytes).",
        )
    return raw


def _gunzip(path: Path, raw: bytes, limit: Bytes) -> bytes:
    """Decompress `raw`, at most one byte over `limit`: what a bomb would expand to is never held."""
    parts, size = [], 0
    try:
        while raw and size <= limit:
            stream = zlib.decompressobj(wbits=31)
            part = stream.decompress(raw, limit + 1 - size)
            parts.append(part)
            size += len(part)
            if size <= limit and not stream.eof:
                raise InputError("is a truncated gzip file", path=path, remedy="Copy or record it again.")
            raw = stream.unused_data.lstrip(b"\0")  # Copies by block pad with zeros.
    except zlib.error as error:
        raise InputError(f"is a broken gzip file ({error})", path=path, remedy="Copy or record it again.") from error
    return b"".join(parts)


def _decode(path: Path, raw: bytes) -> tuple[_Document, tuple[Warning, ...]]:
    try:
        return _document(raw)
    except msgspec.ValidationError as error:
        raise InputError(
            f"is JSON, but no Kineto trace: {error}",
            path=path,
            remedy="Name what torch.profiler exported (export_chrome_trace), or a Run directory.",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        mended, count = _NO_NUMBER.subn(b'":null', raw)
        if count:
            return _decode(path, mended)
        raise InputError(f"is not valid JSON: {error}", path=path, remedy="Copy or record it again.") from error


def _document(raw: bytes) -> tuple[_Document, tuple[Warning, ...]]:
    exact, bare = _EXACT.search(raw) is not None, _LIST.match(raw) is not None
    wanted: Any = _ExactDocument if exact else _Document
    if bare:
        wanted = list[_ExactRow] if exact else list[Row]
    warnings: tuple[Warning, ...] = ()
    try:
        found = msgspec.json.decode(raw, type=wanted)
    except msgspec.ValidationError:
        found, misfits = lenient.decode(raw, wanted)
        if misfits.count:
            message = f"{misfits.count} values of an unexpected type were left out (the first: {misfits.first})"
            warnings = (Warning("values-left-out", message),)
    return _Document(trace_events=found) if bare else found, warnings


def _decline_unknown_accelerators(path: Path, rows: list[Row]) -> None:
    for category in {row.cat.lower() for row in rows if row.cat}:
        name = _UNKNOWN_ACCELERATORS.get(category.split("_")[0])
        runtime = _RUNTIME.match(category)
        if name is None and runtime is not None and runtime["name"] not in _KNOWN_RUNTIMES:
            name = f"{runtime['name']!r}"
        if name is not None:
            raise InputError(
                f"was recorded on {name}, which esprof does not know",
                path=path,
                remedy="esprof reads traces of CPUs, NVIDIA GPUs (CUDA) and AMD GPUs (ROCm).",
            )


def _timed_rows(document: _Document) -> tuple[list[Row], tuple[np.ndarray, np.ndarray], tuple[Warning, ...]]:
    """The rows that last, and of each its start (ns since the epoch) and duration (ns)."""
    rows = [row for row in document.trace_events if row.ph == "X"]
    ts, dur = (np.array(values, np.float64) for values in ([row.ts for row in rows], [row.dur for row in rows]))
    usable = (abs(ts) < _LATEST_US) & (dur >= 0) & (dur < _ABSOLUTE_US)
    if usable.all():
        return rows, _start_and_duration(rows, ts, dur, document.base_time_nanoseconds), ()
    kept = [row for row, is_usable in zip(rows, usable.tolist(), strict=True) if is_usable]
    times = _start_and_duration(kept, ts[usable], dur[usable], document.base_time_nanoseconds)
    message = f"{len(rows) - len(kept)} of {len(rows)} events have no usable time and were left out"
    return kept, times, (Warning("events-left-out", message),)


def _start_and_duration(
    rows: list[Row], ts: np.ndarray, dur: np.ndarray, base_ns: Ns | None
) -> tuple[np.ndarray, np.ndarray]:
    """Times in ns, exact where the file is. `ts` and `dur` are those of `rows`, in microseconds as doubles."""
    if rows and isinstance(rows[0], _ExactRow):
        exact: Any = rows
        starts = np.array([int(row.ts * 1000) for row in exact], np.int64)
        return starts, np.array([int(row.dur * 1000) for row in exact], np.int64)
    # Whole and fractional microseconds apart: their product with 1000 would not fit a double at epoch size.
    whole = np.floor(ts)
    starts = whole.astype(np.int64) * 1000 + np.rint((ts - whole) * 1000).astype(np.int64)
    if len(ts) and np.median(ts) < _ABSOLUTE_US and 0 <= (base_ns or 0) < _LATEST_US * 1000:
        starts += base_ns or 0
    return starts, np.rint(dur * 1000).astype(np.int64)
