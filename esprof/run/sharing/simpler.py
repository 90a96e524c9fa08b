"""Make a Run smaller on disk: simpler rows, with less in them. None of these functions knows what a diagnosis needs."""

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from esprof.core.types import Ns, Rank
from esprof.run.schema import EVENTS, Table
from esprof.run.sharing.contents import RunContents

_NEEDED = ("name", "kind", "start_ns", "dur_ns")
_IDS = ("correlation", "external_id", "autograd_seq")
"""Columns whose numbers only tell which rows belong together."""


def columns_of(contents: RunContents) -> list[str]:
    """Columns of the event tables that have values and may be left out."""
    tables = [rows.arrow for (name, _), rows in contents.tables.items() if name == "events"]
    return [
        column
        for column in EVENTS.names
        if column not in _NEEDED and any(table[column].null_count < len(table) for table in tables)
    ]


def without_columns(contents: RunContents, leave_out: Collection[str]) -> RunContents:
    """The Run with null in these columns of its event tables."""

    def emptied(rank: Rank, rows: Table) -> Table:
        arrow = rows.arrow
        for column in leave_out:
            field = arrow.schema.field(column)
            arrow = arrow.set_column(arrow.schema.get_field_index(column), field, pa.nulls(len(arrow), field.type))
        return Table(arrow)

    return contents.with_tables("events", emptied)


def rounded(contents: RunContents, to_ns: Ns) -> RunContents:
    """The Run with the begin and end of each event rounded to a multiple of `to_ns`."""

    def coarse(rank: Rank, rows: Table) -> Table:
        start = rows.ints("start_ns")
        origin = int(start[0]) if len(start) else 0
        begin, end = (
            np.round((moment - origin) / to_ns).astype(np.int64) for moment in (start, start + rows.ints("dur_ns"))
        )
        return _with_ints(rows, {"start_ns": origin + begin * to_ns, "dur_ns": (end - begin) * to_ns})

    return contents.with_tables("events", coarse)


def renumbered(contents: RunContents) -> RunContents:
    """The Run with small numbers for what only links rows: the first of each is 1, the next one 2."""

    def small(rank: Rank, rows: Table) -> Table:
        columns = {column: _by_appearance(rows.ints(column)) for column in _IDS}
        # A synchronisation names the call that recorded its event by the same numbers.
        old, recorded = rows.ints("correlation"), rows.ints("sync_correlation")
        known, first = np.unique(old, return_index=True)
        at = np.minimum(np.searchsorted(known, recorded), max(len(known) - 1, 0))
        if len(known):
            found = (known[at] == recorded) & (recorded > 0)
            columns["sync_correlation"] = np.where(found, columns["correlation"][first[at]], -1)
        return _with_ints(rows, columns)

    return contents.with_tables("events", small)


def _by_appearance(values: np.ndarray) -> np.ndarray:
    """Values above 0 numbered by their first appearance, from 1; others as they are."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(np.where(distinct > 0, first, np.iinfo(np.int64).max), kind="stable"))
    return np.where(values > 0, order[inverse.reshape(-1)] + 1, values)


def _with_ints(rows: Table, columns: dict[str, np.ndarray]) -> Table:
    """The table with other values in integer columns; where they were null, they stay null."""
    arrow = rows.arrow
    for column, values in columns.items():
        field = arrow.schema.field(column)
        was_null = arrow[column].combine_chunks().is_null().to_numpy(zero_copy_only=False)
        arrow = arrow.set_column(
            arrow.schema.get_field_index(column), field, pa.array(values, pa.int64(), mask=was_null).cast(field.type)
        )
    return Table(arrow)


def joined(contents: RunContents, reach_ns: Ns) -> RunContents:
    """The Run in which neighbouring work of a GPU stream is one: a stretch of it with gaps of at most `reach_ns`.

    It has the name and the launch of its first work; the other launches are left out.
    """
    return contents.with_tables("events", lambda rank, rows: _joined(rows, reach_ns))


def _joined(rows: Table, reach_ns: Ns) -> Table:
    stream, device, start = rows.ints("stream"), rows.ints("device"), rows.ints("start_ns")
    end = start + rows.ints("dur_ns")
    work = np.flatnonzero(rows.is_kind("kernel", "memset") & (stream >= 0))
    others = np.flatnonzero(rows.is_kind("memcpy", "collective") & (stream >= 0))
    lane = device * (1 << 20) + stream
    order = np.lexsort((start[np.concatenate([work, others])], lane[np.concatenate([work, others])]))
    row = np.concatenate([work, others])[order]
    if len(row) < 2:
        return rows
    plain = np.isin(row, work)
    same = (lane[row][1:] == lane[row][:-1]) & plain[1:] & plain[:-1] & (start[row][1:] - end[row][:-1] <= reach_ns)
    head = np.flatnonzero(np.concatenate([[True], ~same]))
    last = np.maximum.reduceat(end[row], head)
    dur = rows.ints("dur_ns").copy()
    dur[row[head]] = last - start[row[head]]
    dropped = np.setdiff1d(row, row[head])
    correlation = rows.ints("correlation")
    gone = np.setdiff1d(correlation[dropped], correlation[row[head]])
    calls = rows.is_kind("runtime") & np.isin(correlation, gone[gone > 0])
    keep = ~calls
    keep[dropped] = False
    return _with_ints(rows, {"dur_ns": dur}).where(keep)
