"""Read one Kineto trace (`torch.profiler`, Chrome JSON, plain or gzip) into the event table.

Accepts what recorders since 2021 wrote: old and new category names, timestamps absolute or relative to
`baseTimeNanoseconds`, integer or fractional, string thread ids, a bare list of events, missing metadata.
"""

import gc
import os
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

from esprof.errors import InputError
from esprof.trace.columns import Row, event_table
from esprof.trace.groups import named_groups
from esprof.trace.run import Group, Warning
from esprof.trace.schema import Table
from esprof.types import Bytes, Ns, Rank

MEMORY_LIMIT: Bytes = 4 << 30
"""Largest trace read, uncompressed, unless ESPROF_MEMORY_LIMIT (bytes) says otherwise."""

_ABSOLUTE_US = 1e14
"""A timestamp above this is microseconds since the epoch; below, it is relative to `baseTimeNanoseconds`."""

_EXACT = re.compile(rb'"ts"\s*:\s*\d{15,}\.\d')
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
    pg_size: int | None = None


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
    ts: Decimal = Decimal(0)  # type: ignore[assignment]
    dur: Decimal = Decimal(0)  # type: ignore[assignment]


class _ExactDocument(_Document):
    trace_events: list[_ExactRow]  # type: ignore[assignment]


def read_trace(path: Path, memory_limit: Bytes | None = None) -> Trace:
    """Read the trace at `path`.

    Raises InputError where it is truncated, no JSON, no trace, larger than the memory limit, or from an accelerator
    that esprof does not know.
    """
    with _no_collector():
        document = _decode(path, _content(path, memory_limit or _memory_limit()))
        rows = [row for row in document.trace_events if row.ph == "X"]
        _decline_unknown_accelerators(path, rows)
        if not any(row.cat for row in rows):
            raise InputError(
                "holds no profiler event", path=path, remedy="Export it with torch.profiler (export_chrome_trace)."
            )
        info = document.distributed_info or _Distributed()
        groups = named_groups((str(pg.pg_name), pg.ranks, pg.backend_config, pg.pg_desc) for pg in info.pg_config)
        events, warnings = event_table(rows, _start_and_duration(rows, document.base_time_nanoseconds), groups)
    used = {device for device in np.unique(events.ints("device")).tolist() if device >= 0}
    devices = tuple(device.name for device in document.device_properties if device.id in used)
    return Trace(
        events=events,
        rank=info.rank,
        world_size=info.world_size,
        groups=tuple(groups.values()),
        host=document.host_name,
        devices=devices,
        versions=_versions(document, info),
        warnings=warnings,
    )


def _versions(document: _Document, info: _Distributed) -> dict[str, str]:
    known = {"nccl": info.nccl_version, "cuda_runtime": document.cuda_runtime_version}
    return {name: str(value) for name, value in known.items() if value is not None}


def _memory_limit() -> Bytes:
    return int(os.environ.get("ESPROF_MEMORY_LIMIT", MEMORY_LIMIT))


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
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    if raw is not None and raw[:2] == b"\x1f\x8b":
        raw = _gunzip(path, raw, limit)
    if raw is None or len(raw) > limit:
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
            raw = stream.unused_data
    except zlib.error as error:
        raise InputError(f"is a broken gzip file ({error})", path=path, remedy="Copy or record it again.") from error
    return b"".join(parts)


def _decode(path: Path, raw: bytes) -> _Document:
    exact = _EXACT.search(raw) is not None
    is_list = raw.lstrip()[:1] == b"["
    try:
        if is_list:
            events = msgspec.json.decode(raw, type=list[_ExactRow if exact else Row])  # type: ignore[misc]
            return _Document(trace_events=events)
        return msgspec.json.decode(raw, type=_ExactDocument if exact else _Document)
    except msgspec.ValidationError as error:
        raise InputError(f"is JSON, but no Kineto trace: {error}", path=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"is not valid JSON: {error}", path=path, remedy="Copy or record it again.") from error


def _decline_unknown_accelerators(path: Path, rows: list[Row]) -> None:
    for category in {row.cat for row in rows if row.cat}:
        name = _UNKNOWN_ACCELERATORS.get(category.lower().split("_")[0])
        if name is not None:
            raise InputError(
                f"was recorded on {name}, which esprof does not know",
                path=path,
                remedy="esprof reads traces of CPUs, NVIDIA GPUs (CUDA) and AMD GPUs (ROCm).",
            )


def _start_and_duration(rows: list[Row], base_ns: Ns | None) -> tuple[np.ndarray, np.ndarray]:
    """Start (ns since the epoch) and duration (ns) of each row, exact to the nanosecond where the file is."""
    if rows and isinstance(rows[0], _ExactRow):
        starts: Any = np.array([int(row.ts * 1000) for row in rows], np.int64)
        return starts, np.array([int(row.dur * 1000) for row in rows], np.int64)
    ts = np.array([row.ts for row in rows], np.float64)
    # Whole and fractional microseconds apart: their product with 1000 would not fit a double at epoch size.
    whole = np.floor(ts)
    starts = whole.astype(np.int64) * 1000 + np.rint((ts - whole) * 1000).astype(np.int64)
    if len(ts) and np.median(ts) < _ABSOLUTE_US:
        starts += base_ns or 0
    durations = np.rint(np.array([row.dur for row in rows], np.float64) * 1000).astype(np.int64)
    return starts, durations
