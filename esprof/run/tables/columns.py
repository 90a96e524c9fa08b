"""The columns of a table of operations: where they come from, and what they must hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from esprof.core.errors import InputError, UsageError
from esprof.core.text import printable
from esprof.core.types import Ns
from esprof.run.groups import MAX_RANKS
from esprof.run.reading import memory_limit

COLUMNS_PAGE = "docs/how-to/tables.md describes the columns and their units."

_NEEDED = ("rank", "op", "start", "end")
_PLACES = {"data": MAX_RANKS, "stage": MAX_RANKS}
"""Columns that are read only if they are asked for: the data-parallel rank and the pipeline stage."""
_NUMBERS = {"rank": MAX_RANKS, "step": 1 << 31, "stream": 1 << 31, "bytes": 1 << 62} | _PLACES
"""Integer columns with their exclusive upper bounds."""
_TEXTS = ("op", "group")
_TIMES = ("start", "end", "duration")
NAMES = (*_TEXTS, *_NUMBERS, *_TIMES)
_UNITS: dict[str, Ns] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_TIME_FORMS = (
    "Use timestamps, integer ns since 1970 or since the start of the job, or name the unit: --columns start=NAME:s."
)
_FLOAT_DIGIT: Ns = 1_000
"""Times that are floats are rounded to it: seconds since 1970 have no more digits."""
_FLOAT_ERROR: Ns = 5_000
"""Largest overlap of two operations that comes from rounding: a duration of 46 s in single precision is off by 4 µs."""
_BYTES_A_VALUE = 8
_MAX_TEXT_CHARS = 10_000
_MAX_COLUMNS_SHOWN = 30

_OTHER_UNITS = tuple((1_500_000_000 * unit, 2_500_000_000 * unit) for unit in (1, 10**3, 10**6))
"""Ranges of times since 1970 in s, ms and µs, for the years 2017 to 2049. As ns since the start of a job, such times would
lie in its third second, half hour or third week."""
_LATEST: Ns = 4 * 10**18


@dataclass(frozen=True)
class Source:
    """The column of a file that holds one of NAMES."""

    column: str
    unit_ns: Ns | None = None
    """Unit of a time, ns; None for ns, or for what the column's own type says."""


def sources_of(columns: Mapping[str, str]) -> dict[str, Source]:
    """Where each of NAMES is found, from `columns`: name -> column, or column and unit as `start_ts:s` for a time.

    Names that `columns` lacks are found in columns of their own name. Raises UsageError for an unknown name.
    """
    if unknown := [name for name in columns if name not in NAMES]:
        raise UsageError(f"unknown column {', '.join(unknown)}", remedy=f"Known columns: {', '.join(NAMES)}.")
    found = {name: Source(name) for name in NAMES if name not in _PLACES and name not in columns}
    if "duration" in columns:
        found.pop("end", None)
    for name, column in columns.items():
        before, _, unit = column.rpartition(":")
        timed = name in _TIMES and before and unit in _UNITS
        found[name] = Source(before, _UNITS[unit]) if timed else Source(column)
    return found


def read_columns(path: Path, columns: Mapping[str, str]) -> pa.Table:
    """The rows of a Parquet file with all of NAMES but `duration`: numbers and times (ns) as int64, missing columns null.

    Raises InputError.
    """
    sources = sources_of(columns)
    rows = _content(path, sources, set(columns))
    there = rows.column_names
    if lacks := [name for name in _NEEDED if name not in there and (name != "end" or "duration" not in there)]:
        raise wrong(path, f"has no column {', '.join(lacks)}")
    if not len(rows):
        raise wrong(path, "holds no operation")
    start = _times(path, rows, "start", sources)
    end = _times(path, rows, "end", sources) if "end" in there else _after(path, rows, start, sources)
    checked = pa.table(
        {name: _numbers(path, rows, name) for name in _NUMBERS}
        | {name: _text(path, rows, name) for name in _TEXTS}
        | {"start": start, "end": end}
    )
    for name in _NEEDED:
        if lacking := checked[name].null_count:
            raise wrong(path, f"has {lacking} rows without {name}")
    if backwards := pc.sum(pc.less(checked["end"], checked["start"])).as_py():
        raise wrong(path, f"has {backwards} rows whose end is before the start")
    rounded = any(pa.types.is_floating(rows[name].type) for name in _TIMES if name in there)
    return _without_rounding(checked) if rounded else checked


def wrong(path: Path, reason: str, remedy: str = COLUMNS_PAGE) -> InputError:
    return InputError(reason, path=path, remedy=remedy)


def _content(path: Path, sources: Mapping[str, Source], asked: set[str]) -> pa.Table:
    """Read the columns of `sources` that the file has, under their own names. Those that were `asked` for must be there."""
    try:
        schema = pq.read_schema(path)
        names = [name for name, source in sources.items() if source.column in schema.names]
        wanted = list(dict.fromkeys(sources[name].column for name in names))
        if twice := [column for column in wanted if schema.names.count(column) > 1]:
            raise wrong(path, f"has {printable(twice[0])} more than once")
        if lacks := sorted(sources[name].column for name in asked - set(names)):
            there = ", ".join(printable(name) for name in schema.names[:_MAX_COLUMNS_SHOWN])
            raise wrong(path, f"has no column {printable(', '.join(lacks))}", f"Its columns are {there}.")
        texts = [sources[name].column for name in _TEXTS if name in names]
        texts = [column for column in texts if _is_text(schema.field(column).type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:  # Repeated texts share memory.
            if file.metadata.num_rows * len(names) * _BYTES_A_VALUE > memory_limit():
                remedy = "Give it as a file a rank, or set ESPROF_MEMORY_LIMIT."
                raise wrong(path, f"is larger than the memory limit: {file.metadata.num_rows} rows", remedy)
            rows = file.read(columns=wanted)
        rows.validate(full=True)  # Reading checks neither texts nor the indices of dictionaries.
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        reason = printable(str(error).partition("\n")[0])
        raise wrong(path, f"is no readable Parquet file: {reason}") from error
    return pa.table({name: rows[sources[name].column] for name in names})


def _numbers(path: Path, rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(rows, name, pa.int64())
    # pandas stores integers with missing values as floats.
    if pa.types.is_floating(column.type) and name != "rank":
        column = _cast(path, name, pc.if_else(pc.is_nan(column), None, column), pa.int64())
    if not pa.types.is_integer(column.type):
        raise wrong(path, f"has {name} as {column.type}, not as whole numbers")
    column = _cast(path, name, column, pa.int64())
    least, most = (bound.as_py() for bound in (pc.min(column), pc.max(column)))
    if least is not None and not 0 <= least <= most < _NUMBERS[name]:
        raise wrong(path, f"has {name} {least if least < 0 else most}, which is not from 0 to {_NUMBERS[name] - 1}")
    return column


def _text(path: Path, rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(rows, name, pa.string())
    if name == "group" and pa.types.is_integer(column.type):  # The number of a group is its name.
        column = pc.binary_join_element_wise("group", _cast(path, name, column, pa.string()), " ")
    if not _is_text(column.type):
        raise wrong(path, f"has {name} as {column.type}, not as text")
    column = _cast(path, name, column, pa.dictionary(pa.int32(), pa.string()))
    longest = max((pc.max(pc.utf8_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks), default=0)
    if longest > _MAX_TEXT_CHARS:
        raise wrong(path, f"has {name} of {longest} characters")
    return column.cast(pa.string())


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary))


def _times(path: Path, rows: pa.Table, name: str, sources: Mapping[str, Source]) -> pa.ChunkedArray:
    """Return times in ns. Floats without a unit are refused: they cannot represent ns since 1970."""
    column, unit = rows[name], sources[name].unit_ns
    if pa.types.is_timestamp(column.type):
        column = _cast(path, name, column, pa.timestamp("ns", column.type.tz))
    elif unit is not None:
        return _within(path, name, _in_ns(path, name, column, unit))
    elif not pa.types.is_integer(column.type):
        raise wrong(path, f"has {name} as {column.type}, whose unit is not known", _TIME_FORMS)
    column = _within(path, name, _cast(path, name, column, pa.int64()))
    least, most = (bound.as_py() for bound in (pc.min(column), pc.max(column)))
    if name != "duration" and least is not None and any(low < least <= most < high for low, high in _OTHER_UNITS):
        raise wrong(path, f"has times in {name} that seem to be s, ms or µs since 1970", _TIME_FORMS)
    return column


def _within(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    least, most = (bound.as_py() for bound in (pc.min(column), pc.max(column)))
    if least is not None and not 0 <= least <= most < _LATEST:
        raise wrong(path, f"has times in {name} that are before 1970 or after 2096 if they are ns", _TIME_FORMS)
    return column


def _in_ns(path: Path, name: str, column: pa.ChunkedArray, unit_ns: Ns) -> pa.ChunkedArray:
    """Numbers in a unit of `unit_ns` as ns; floats are rounded to µs."""
    if pa.types.is_integer(column.type):
        digit = 1
    elif pa.types.is_floating(column.type):
        digit = _FLOAT_DIGIT
    else:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        raise wrong(path, f"has {name} as {kind}, not as numbers", _TIME_FORMS)
    numbers = _cast(path, name, column, pa.float64() if digit > 1 else pa.int64())
    known = numbers.is_valid().to_numpy() if digit == 1 else np.isfinite(numbers.to_numpy())
    values = np.where(known, numbers.fill_null(0).to_numpy(), 0)
    if abs(values).max(initial=0) > _LATEST // unit_ns:
        raise wrong(path, f"has times in {name} that are after 2096 in this unit", _TIME_FORMS)
    ns = np.rint(values * (unit_ns / digit)).astype(np.int64) * digit if digit > 1 else values * unit_ns
    return pa.chunked_array([pa.array(ns, mask=~known)])


def _after(path: Path, rows: pa.Table, start: pa.ChunkedArray, sources: Mapping[str, Source]) -> pa.ChunkedArray:
    """The ends of operations of known durations."""
    duration = _times(path, rows, "duration", sources)
    return _within(path, "duration", pc.add(start, duration))


def _without_rounding(rows: pa.Table) -> pa.Table:
    """The rows whose ends are moved back to the start of the operation that they overlap by a rounding error."""
    rank, start, end = (rows[name].to_numpy() for name in ("rank", "start", "end"))
    order = np.lexsort((start, rank))
    # One axis for all ranks: times since the first one, with room between the ranks.
    span = int(end.max() - start.min()) + 2 * _FLOAT_ERROR
    if span > _LATEST // (int(rank.max()) + 2):
        return rows
    axis = rank * span - start.min()
    starts = (axis + start)[order]
    latest = starts[np.searchsorted(starts, axis + end, side="right") - 1]
    overlap = axis + end - latest
    ends = np.where((overlap <= _FLOAT_ERROR) & (latest > axis + start), end - overlap, end)
    return rows.set_column(rows.column_names.index("end"), "end", pa.array(ends))


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the column; nulls if it is missing or has only nulls."""
    if name in rows.column_names and not pa.types.is_null(rows[name].type):
        return rows[name]
    return pa.chunked_array([pa.nulls(len(rows), kind)])


def _cast(path: Path, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise wrong(path, f"has values of {name} that {kind} cannot hold") from error
