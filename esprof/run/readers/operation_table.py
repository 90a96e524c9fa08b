"""Tables of timed operations as Parquet, one or several files: docs/how-to/inputs.md describes the columns."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.text import printable
from esprof.core.types import Ns, Rank
from esprof.run.collective_names import collective_word
from esprof.run.groups import MAX_RANKS, Group, group_name, joined_groups, parse_ranks
from esprof.run.readers.reader import Reader
from esprof.run.reading import memory_limit, run_all
from esprof.run.run import RankMeta, Run, RunMeta, RunWarning, WarningCode
from esprof.run.schema import EVENTS, Table, table

_NEEDED = ("rank", "op", "start", "end")
_NUMBERS = {"rank": MAX_RANKS, "step": 1 << 31, "stream": 1 << 31, "bytes": 1 << 62}
"""Integer columns with their exclusive upper bounds."""
_TEXTS = ("op", "group")
_COLUMNS = "docs/how-to/inputs.md describes the columns and their units."
_TIMES = "Use timestamps, or integer ns since 1970 or since the start of the job."
_BYTES_A_VALUE = 8
_MAX_TEXT_CHARS = 10_000

_OTHER_UNITS = tuple((1_500_000_000 * unit, 2_500_000_000 * unit) for unit in (1, 10**3, 10**6))
"""Ranges of times since 1970 in s, ms and µs, for the years 2017 to 2049. As ns since the start of a job, such times would
lie in its third second, half hour or third week."""
_LATEST: Ns = 4 * 10**18
_FIRST_COLLECTIVE_THREAD = 1 << 32
"""Id of the first thread of collectives, above all streams."""


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    """Read all tables. Unreadable ones become warnings, unless all are unreadable."""
    results = run_all(executor, _attempt, paths)
    tables = [result for result in results if not isinstance(result, InputError)]
    faults = [result for result in results if isinstance(result, InputError)]
    if not tables:
        raise faults[0]
    ranks = [rank for one in tables for rank in pc.unique(one["rank"]).to_pylist()]
    if twice := {rank for rank in ranks if ranks.count(rank) > 1}:
        raise _wrong(
            named, f"two of these tables hold {readable.ranks(sorted(twice))}", "Name the tables of one job only."
        )
    warnings = [RunWarning("trace-unreadable", str(fault)) for fault in faults]
    rows = pa.concat_tables(tables)
    if not pc.count(rows["step"]).as_py():
        rows = rows.set_column(rows.column_names.index("step"), "step", pa.array(np.zeros(len(rows), np.int64)))
        warnings.append(RunWarning("no-steps", "the table has no steps; all of it counts as one step"))
    groups = _groups(rows)
    rows = rows.sort_by("rank")
    first = np.searchsorted(rows["rank"].to_numpy(), sorted(ranks))
    stretches = zip(sorted(ranks), first, np.append(first[1:], len(rows)), strict=True)
    events = {rank: _events(rows.slice(at, end - at), rank, groups) for rank, at, end in stretches}
    world = max([*ranks, *(rank for group in groups.values() for rank in group.ranks)]) + 1
    if missing := tuple(sorted(set(range(world)) - set(ranks))):
        lacks = f"no operation of {readable.ranks(missing)}; the job had {world} ranks"
        warnings.append(RunWarning(WarningCode.RANK_MISSING, lacks, missing))
    meta = RunMeta(
        source="table",
        world_size=world,
        ranks=tuple(RankMeta(rank=rank, events=len(of_rank)) for rank, of_rank in events.items()),
        groups=joined_groups(groups.values()),
    )
    return Run(meta, lambda name, rank: events[rank] if name == "events" else None, named, tuple(warnings))


def _attempt(path: Path) -> pa.Table | InputError:
    try:
        return _checked(path, _content(path))
    except InputError as error:
        return error


def _content(path: Path) -> pa.Table:
    """Read the known columns of a file. Raises InputError."""
    try:
        schema = pq.read_schema(path)
        texts = [name for name in _TEXTS if schema.names.count(name) == 1 and _is_text(schema.field(name).type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:  # Repeated texts share memory.
            names = file.schema_arrow.names
            there = [name for name in (*_NUMBERS, *_TEXTS, "start", "end") if name in names]
            if twice := [name for name in there if names.count(name) > 1]:
                raise _wrong(path, f"has {twice[0]} more than once")
            if file.metadata.num_rows * len(there) * _BYTES_A_VALUE > memory_limit():
                remedy = "Give it as a file a rank, or set ESPROF_MEMORY_LIMIT."
                raise _wrong(path, f"is larger than the memory limit: {file.metadata.num_rows} rows", remedy)
            return file.read(columns=there)
    except (OSError, pa.ArrowException) as error:
        reason = printable(str(error).partition("\n")[0])
        raise _wrong(path, f"is no readable Parquet file: {reason}") from error


def _checked(path: Path, rows: pa.Table) -> pa.Table:
    """Return the rows with all columns, numbers and times (ns) as int64; missing columns are null. Raises InputError."""
    if lacks := [name for name in _NEEDED if name not in rows.column_names]:
        raise _wrong(path, f"has no column {', '.join(lacks)}")
    if not len(rows):
        raise _wrong(path, "holds no operation")
    checked = pa.table(
        {name: _numbers(path, rows, name) for name in _NUMBERS}
        | {name: _text(path, rows, name) for name in _TEXTS}
        | {name: _times(path, rows, name) for name in ("start", "end")}
    )
    for name in _NEEDED:
        if lacking := checked[name].null_count:
            raise _wrong(path, f"has {lacking} rows without {name}")
    if backwards := pc.sum(pc.less(checked["end"], checked["start"])).as_py():
        raise _wrong(path, f"has {backwards} rows whose end is before the start")
    return checked


def _numbers(path: Path, rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(rows, name, pa.int64())
    if pa.types.is_floating(column.type) and name in (
        "step",
        "bytes",
    ):  # pandas stores integers with missing values as floats.
        column = _cast(path, name, pc.if_else(pc.is_nan(column), None, column), pa.int64())
    if not pa.types.is_integer(column.type):
        raise _wrong(path, f"has {name} as {column.type}, not as whole numbers")
    column = _cast(path, name, column, pa.int64())
    least, most = (bound.as_py() for bound in (pc.min(column), pc.max(column)))
    if least is not None and not 0 <= least <= most < _NUMBERS[name]:
        raise _wrong(path, f"has {name} {least if least < 0 else most}, which is not from 0 to {_NUMBERS[name] - 1}")
    return column


def _text(path: Path, rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(rows, name, pa.string())
    if not _is_text(column.type):
        raise _wrong(path, f"has {name} as {column.type}, not as text")
    column = _cast(path, name, column, pa.dictionary(pa.int32(), pa.string()))
    longest = max((pc.max(pc.utf8_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks), default=0)
    if longest > _MAX_TEXT_CHARS:
        raise _wrong(path, f"has {name} of {longest} characters")
    return column.cast(pa.string())


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary))


def _times(path: Path, rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return times in ns. Floats are refused: they cannot represent ns since 1970, and their unit is unknown."""
    column = rows[name]
    if pa.types.is_timestamp(column.type):
        column = _cast(path, name, column, pa.timestamp("ns", column.type.tz))
    elif not pa.types.is_integer(column.type):
        raise _wrong(path, f"has {name} as {column.type}, whose unit is not known", _TIMES)
    column = _cast(path, name, column, pa.int64())
    least, most = (bound.as_py() for bound in (pc.min(column), pc.max(column)))
    if least is not None and not 0 <= least <= most < _LATEST:
        raise _wrong(path, f"has times in {name} that are before 1970 or after 2096 if they are ns", _TIMES)
    if least is not None and any(low < least <= most < high for low, high in _OTHER_UNITS):
        raise _wrong(path, f"has times in {name} that seem to be s, ms or µs since 1970", _TIMES)
    return column


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the column; nulls if it is missing or has only nulls."""
    if name in rows.column_names and not pa.types.is_null(rows[name].type):
        return rows[name]
    return pa.chunked_array([pa.nulls(len(rows), kind)])


def _cast(path: Path, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong(path, f"has values of {name} that {kind} cannot hold") from error


def _groups(rows: pa.Table) -> dict[str, Group]:
    """Return groups by their text: a list of ranks, or a name; ranks with a row of that name are its members."""
    used = rows.group_by(["group", "rank"]).aggregate([])
    users: dict[str, set[Rank]] = {}
    for text, rank in zip(used["group"].to_pylist(), used["rank"].to_pylist(), strict=True):
        if text is not None:
            users.setdefault(text, set()).add(rank)
    members = {text: parse_ranks(text) or tuple(sorted(ranks)) for text, ranks in users.items()}
    return {text: Group(name=group_name(ranks), ranks=ranks, description=text) for text, ranks in members.items()}


def _events(rows: pa.Table, rank: Rank, groups: Mapping[str, Group]) -> Table:
    """Return the events of one rank.

    A table has the times of operations, but not their launches. Its lanes therefore become threads, and a collective
    becomes two events, as PyTorch records gloo: a call at its start and the communication on a separate thread.
    """
    is_collective = pc.is_valid(rows["group"])
    work, collectives = rows.filter(pc.invert(is_collective)), rows.filter(is_collective)
    main = pc.min(work["stream"].fill_null(0)).as_py() or 0
    tables = [
        _launch_calls(collectives, main),
        _steps(rows),
        _operations(work, main),
        _communication(collectives, rank, groups),
    ]
    events = Table(pa.concat_tables([one.arrow for one in tables]).unify_dictionaries())
    # An operation that starts together with a collective did not launch it: the call comes first.
    others = np.arange(len(events)) >= len(collectives)
    return Table(events.arrow.take(np.lexsort((-events.ints("dur_ns"), others, events.ints("start_ns")))))


def _operations(rows: pa.Table, main: int) -> Table:
    lane = rows["stream"].fill_null(0).to_numpy()
    roles = ["main" if one == main else "other" for one in lane.tolist()]
    return table(_timed(rows, "op") | {"name": rows["op"].to_pylist(), "tid": lane, "thread_role": roles}, EVENTS)


def _launch_calls(rows: pa.Table, main: int) -> Table:
    calls = _timed(rows, "op") | {"dur_ns": np.zeros(len(rows), np.int64)}
    names = [f"c10d::{name}" for name in rows["op"].to_pylist()]
    return table(calls | {"name": names, "tid": [main] * len(rows), "thread_role": ["main"] * len(rows)}, EVENTS)


def _communication(rows: pa.Table, rank: Rank, groups: Mapping[str, Group]) -> Table:
    names = rows["op"].to_pylist()
    words = [collective_word(name) or name for name in names]
    between = [groups[text] for text in rows["group"].to_pylist()]
    others = [[one for one in group.ranks if one != rank] for group in between]
    is_p2p = [word in ("send", "recv") and len(other) == 1 for word, other in zip(words, others, strict=True)]
    columns = {
        "name": names,
        "tid": _lanes(rows),
        "group": [group.name for group in between],
        "collective": words,
        "is_p2p": is_p2p,
        "peer": [other[0] if p2p else None for other, p2p in zip(others, is_p2p, strict=True)],
        "in_bytes": rows["bytes"].to_pylist(),
    }
    return table(_timed(rows, "collective") | columns, EVENTS)


def _lanes(rows: pa.Table) -> list[int]:
    """Return the thread of each collective. Collectives with the same operation, group and stream share a thread unless they
    overlap."""
    free: dict[tuple[object, ...], list[tuple[Ns, int]]] = {}
    """Time from which each thread of a kind is free, as a heap."""
    lanes, count = np.zeros(len(rows), np.int64), 0
    kinds = list(zip(*(rows[name].to_pylist() for name in ("op", "group", "stream")), strict=True))
    start, end = (rows[name].to_numpy() for name in ("start", "end"))
    for row in np.lexsort((end, start)).tolist():
        threads = free.setdefault(kinds[row], [])
        if threads and threads[0][0] <= start[row]:
            _, lane = heappop(threads)
        else:
            lane, count = _FIRST_COLLECTIVE_THREAD + count, count + 1
        heappush(threads, (int(end[row]), lane))
        lanes[row] = lane
    return lanes.tolist()


def _timed(rows: pa.Table, kind: str) -> dict[str, object]:
    start, end = (rows[name].to_numpy() for name in ("start", "end"))
    return {
        "kind": [kind] * len(rows),
        "start_ns": start,
        "dur_ns": end - start,
        "pid": [0] * len(rows),
        "step": rows["step"].to_pylist(),
    }


def _steps(rows: pa.Table) -> Table:
    """Return one row per step, from its first operation to that of the next step; the last step ends with its operations."""
    spans = rows.filter(pc.is_valid(rows["step"])).group_by("step").aggregate([("start", "min"), ("end", "max")])
    spans = spans.sort_by("step")
    start = spans["start_min"].to_numpy()
    end = np.append(start[1:], spans["end_max"].to_numpy()[-1:])
    steps = spans["step"].to_pylist()
    if (np.diff(start) <= 0).any():
        raise InputError("has steps whose order differs from that of their numbers", remedy=_COLUMNS)
    columns = {"name": [f"ProfilerStep#{step}" for step in steps], "kind": ["step"] * len(steps), "step": steps}
    threads = {"pid": [0] * len(steps), "tid": [0] * len(steps)}
    return table(columns | threads | {"start_ns": start, "dur_ns": end - start}, EVENTS)


def _wrong(path: Path, reason: str, remedy: str = _COLUMNS) -> InputError:
    return InputError(reason, path=path, remedy=remedy)


READER = Reader(name="table of operations", recognises=lambda path: path.suffix == ".parquet", read=_read)
