"""Read one Kineto trace (`torch.profiler`, Chrome JSON, plain or gzip) into the event table.

Accepts what recorders since 2021 wrote: old and new category names, timestamps absolute or relative to
`baseTimeNanoseconds`, integer or fractional, string thread ids, a bare list of events, missing metadata.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from esprof.core.errors import InputError
from esprof.core.types import Bytes, Ns, Rank
from esprof.run.ascend.trace_view import ASCEND_GROWTH, as_kineto, is_ascend
from esprof.run.execution.join import joined
from esprof.run.execution.trace import ExecutionTrace
from esprof.run.groups import MAX_RANKS, Group, named_groups
from esprof.run.kineto.categories import other_devices, unread
from esprof.run.kineto.columns import event_table
from esprof.run.kineto.content import content, too_large
from esprof.run.kineto.foreign import refuse_foreign
from esprof.run.kineto.lenient import Misfits, decode, prepare
from esprof.run.kineto.merged import MergedRank, rows_by_rank
from esprof.run.kineto.rows import TraceRows
from esprof.run.kineto.scan import MISSING, NoRows, NotJson, Scan, TooLarge, scan
from esprof.run.kineto.steps.trace_steps import TraceSteps
from esprof.run.reading import memory_limit
from esprof.run.run import RunWarning
from esprof.run.schema import Table

_ABSOLUTE_NS: Ns = 10**17
"""A timestamp above this (the year 1973) counts from the epoch; below, from `baseTimeNanoseconds`."""

_LATEST_NS: Ns = 4 * 10**18
"""The year 2096. A later time, or a duration above `_ABSOLUTE_NS`, is garbage, and might not fit int64."""

_NO_NUMBER = re.compile(rb'"\s*:\s*(?:[-+]?(?:inf(?:inity)?|nan)|N/A)\b', re.IGNORECASE)
"""Values that recorders of 2021 wrote for a bandwidth over no time; JSON has no such numbers."""


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
    warnings: tuple[RunWarning, ...] = ()
    local_groups: dict[str, Group] = field(default_factory=dict)
    """The process groups by the names that this process has for them."""
    steps: Table | None = None
    """The steps, where no event tells of them."""
    twin: str | None = None
    """File of the execution trace that completed it."""


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
    """What the document holds beside the rows."""

    device_properties: list[_Device] = []
    distributed_info: _Distributed | None = None
    base_time_nanoseconds: int | None = None
    host_name: str | None = msgspec.field(name="host_name", default=None)
    cuda_runtime_version: int | None = msgspec.field(name="cuda_runtime_version", default=None)


prepare(_Document | None)


def read_trace(path: Path, steps: TraceSteps | None = None) -> Trace:
    """Read the trace of one rank at `path`. `steps`, if given, replace the steps that the profiler marked.

    Raises what `read_traces` raises.
    """
    (trace,) = _read(path, lambda scanned: [_trace(_content_of(scanned), steps)])
    return trace


def read_traces(path: Path, twins: Sequence[ExecutionTrace] = ()) -> list[Trace]:
    """Read the traces at `path`: several if the file was merged from those of several ranks. Of `twins`, the execution trace
    of the same process completes each.

    Raises InputError where it is truncated, no JSON, no trace, or larger than the memory limit.
    """
    return _read(path, lambda scanned: _traces_of(scanned, twins))


def _read(path: Path, build: Callable[[Scan], list[Trace]]) -> list[Trace]:
    limit = memory_limit()
    text = content(path, limit)
    refuse_foreign(path, text)
    if is_ascend(text) and len(text) > limit // ASCEND_GROWTH:
        raise too_large(path, limit // ASCEND_GROWTH)
    try:
        text = as_kineto(text) if is_ascend(text) else text
        traces = [trace for trace in build(_scanned(text, limit)) if len(trace.events)]
    except NotJson as error:
        raise InputError(f"is not valid JSON: {error}", path=path, remedy="Copy or record it again.") from error
    except NoRows as error:
        raise InputError(
            "is JSON, but no Kineto trace: it has no list of `traceEvents`",
            path=path,
            remedy="Name what torch.profiler exported (export_chrome_trace), or a Run directory.",
        ) from error
    except TooLarge as error:
        raise too_large(path, limit) from error
    if not traces and b'"/host:CPU"' in text:
        raise InputError(
            "is the Chrome trace of a profile of JAX, whose events have no categories",
            path=path,
            remedy="Name the .xplane.pb file next to it.",
        )
    if not traces:
        raise InputError(
            "holds no profiler event", path=path, remedy="Export it with torch.profiler (export_chrome_trace)."
        )
    return traces


def trace_of_rows(rows: Iterable[dict[str, Any]], document: dict[str, Any]) -> Trace:
    """The trace of rows and other fields that another source has converted to those of Kineto."""
    encoder = msgspec.json.Encoder(decimal_format="number")
    text = bytearray(encoder.encode(document | {"traceEvents": list(rows)}))
    return _trace(_content_of(_scanned(text, memory_limit())))


class _TraceContent(NamedTuple):
    """A trace file, decoded."""

    document: _Document
    rows: TraceRows
    times: tuple[np.ndarray, np.ndarray]
    """Start and duration of each row, ns."""
    misfits: Misfits
    warnings: tuple[RunWarning, ...]
    twin: str | None = None
    """File of the execution trace that completed the rows."""

    def completed(self, twins: Sequence[ExecutionTrace]) -> "_TraceContent":
        info = self.document.distributed_info or _Distributed()
        found = joined(self.rows, twins, info.rank)
        if found.twin is not None and not info.pg_config:
            groups = decode(msgspec.json.encode(found.twin.groups), list[_PgConfig], self.misfits) or []
            info = msgspec.structs.replace(info, pg_config=groups)
        return self._replace(
            document=msgspec.structs.replace(self.document, distributed_info=info),
            rows=found.rows,
            twin=found.twin.name if found.twin is not None else None,
        )

    def of_rank(self, rank: MergedRank) -> "_TraceContent":
        info = msgspec.structs.replace(self.document.distributed_info or _Distributed(), rank=rank.rank)
        start_ns, dur_ns = self.times
        return self._replace(
            document=msgspec.structs.replace(self.document, distributed_info=info),
            rows=self.rows.pick(rank.rows),
            times=(start_ns[rank.rows], dur_ns[rank.rows]),
            warnings=self.warnings + rank.warnings,
        )


def _content_of(scanned: Scan) -> _TraceContent:
    misfits = Misfits()
    try:
        document: _Document = decode(scanned.frame, _Document | None, misfits) or _Document()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJson(str(error)) from error
    rows, times, lost = _timed(TraceRows(scanned, misfits), document.base_time_nanoseconds)
    return _TraceContent(document, rows, times, misfits, lost)


def _traces_of(scanned: Scan, twins: Sequence[ExecutionTrace]) -> list[Trace]:
    """The traces of all ranks in a file."""
    content = _content_of(scanned)
    ranks = rows_by_rank(content.rows)
    if len(ranks) == 1:
        contents = [content._replace(warnings=content.warnings + ranks[0].warnings)]
    else:
        contents = [content.of_rank(rank) for rank in ranks]
    return [_trace(one.completed(twins) if twins else one) for one in contents]


def _trace(content: _TraceContent, given: TraceSteps | None = None) -> Trace:
    """The trace of one rank. `given`, if any, are its steps."""
    document, rows, times, misfits, lost, twin = content
    categories = rows.texts("cat")
    noted = other_devices(categories) + unread(categories)
    info = document.distributed_info or _Distributed()
    world = info.world_size if 0 < (info.world_size or 0) <= MAX_RANKS else None
    groups = named_groups(
        (str(pg.pg_name), _members(pg, world), pg.backend_config, pg.pg_desc) for pg in info.pg_config
    )
    events, steps, warnings = event_table(rows, times, groups, given)
    used = set(np.unique(events.ints("device")).tolist())
    return Trace(
        events=events,
        rank=info.rank if 0 <= (info.rank or 0) < MAX_RANKS else None,
        world_size=world,
        groups=tuple(groups.values()),
        host=document.host_name,
        devices=tuple(device.name for device in document.device_properties if device.id in used),
        versions=_versions(document, info),
        warnings=warnings + _left_out(misfits) + lost + noted,
        local_groups=groups,
        steps=steps,
        twin=twin,
    )


def _members(pg: _PgConfig, world: int | None) -> list[int] | str | None:
    """The ranks of a group; torch leaves the list empty for the group of all of them."""
    return list(range(world)) if pg.ranks == [] and world else pg.ranks


def _versions(document: _Document, info: _Distributed) -> dict[str, str]:
    known = {"nccl": info.nccl_version, "cuda_runtime": document.cuda_runtime_version}
    return {name: str(value) for name, value in known.items() if value is not None}


def _scanned(text: bytearray, limit: Bytes) -> Scan:
    try:
        return scan(text, limit)
    except NotJson:
        mended, count = _NO_NUMBER.subn(b'":null', text)
        if not count:
            raise
        return _scanned(bytearray(mended), limit)


def _left_out(misfits: Misfits) -> tuple[RunWarning, ...]:
    message = f"{misfits.count} values of an unexpected type were left out (the first: {misfits.first})"
    return (RunWarning("values-left-out", message),) if misfits.count else ()


def _timed(
    rows: TraceRows, base_ns: Ns | None
) -> tuple[TraceRows, tuple[np.ndarray, np.ndarray], tuple[RunWarning, ...]]:
    """The rows that have a time, their (starts in ns since the epoch, durations in ns), and a warning if any have none."""
    starts, durations = rows.numbers("ts"), rows.numbers("dur")
    usable = (starts != MISSING) & (abs(starts) < _LATEST_NS) & (durations >= 0) & (durations < _ABSOLUTE_NS)
    lost: tuple[RunWarning, ...] = ()
    if not usable.all():
        message = f"{np.count_nonzero(~usable)} of {len(rows)} events have no usable time and were left out"
        lost = (RunWarning("events-left-out", message),)
        rows, starts, durations = rows.pick(np.flatnonzero(usable)), starts[usable], durations[usable]
    if len(starts) and np.median(starts) < _ABSOLUTE_NS and 0 <= (base_ns or 0) < _LATEST_NS:
        starts = starts + (base_ns or 0)
    return rows, (starts, durations), lost
