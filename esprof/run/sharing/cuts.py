"""Make a Run smaller: each function leaves something out of its contents. None knows what a diagnosis needs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from esprof.core.types import Ns, Rank
from esprof.run.run import RankMeta, Window
from esprof.run.schema import Table
from esprof.run.sharing.contents import SIDE_TABLES, RunContents

Spans = Mapping[Rank, tuple[Ns, Ns]]
"""Begin and end of the chosen steps on the clock of each rank, ns."""

_FLIGHTS, _PROBES, _HISTORY = "flight", "probes", "history"
_ON_GPU = ("kernel", "memcpy", "memset", "collective")


def parts_of(contents: RunContents) -> list[str]:
    """The parts that a Run may lack: side tables, `flight`, `probes` and `history`."""
    present = {name for name, _ in contents.tables}
    others = {_FLIGHTS: contents.flights, _PROBES: contents.probes, _HISTORY: contents.history or contents.rounds}
    return [name for name in SIDE_TABLES if name in present] + [name for name, part in others.items() if part]


def without_parts(contents: RunContents, names: Collection[str]) -> RunContents:
    """The Run without some of `parts_of`."""
    return replace(
        contents,
        tables={(name, rank): rows for (name, rank), rows in contents.tables.items() if name not in names},
        flights={} if _FLIGHTS in names else contents.flights,
        probes=None if _PROBES in names else contents.probes,
        history=() if _HISTORY in names else contents.history,
        rounds=() if _HISTORY in names else contents.rounds,
    )


def only_steps(contents: RunContents, steps: Sequence[int], spans: Spans) -> RunContents:
    """The Run with `steps`, which follow each other, as its only window. Steps without profiler stay, and so do side tables.

    Work of a GPU belongs to it if it runs in the window or was launched there.
    """

    def windowed(meta: RankMeta) -> RankMeta:
        windows = (Window(first=steps[0], last=steps[-1]),) if meta.windows else ()
        return msgspec.structs.replace(meta, windows=windows)

    def events(rank: Rank, rows: Table) -> Table:
        if rank not in spans:
            return rows
        begin, finish = spans[rank]
        start = rows.ints("start_ns")
        inside = (start + rows.ints("dur_ns") > begin) & (start < finish)
        correlation = rows.ints("correlation")
        launched = rows.is_kind(*_ON_GPU) & np.isin(
            correlation, correlation[inside & rows.is_kind("runtime") & (correlation > 0)]
        )
        return rows.where(inside | launched)

    def step_rows(rank: Rank, rows: Table) -> Table:
        return rows.where(~rows.matches("phase", "timed".__eq__) | np.isin(rows.ints("step"), steps))

    meta = msgspec.structs.replace(contents.meta, ranks=tuple(map(windowed, contents.meta.ranks)))
    return replace(contents, meta=meta).with_tables("events", events).with_tables("steps", step_rows)


def without_unprofiled(contents: RunContents) -> RunContents:
    """The Run without the times of steps outside its window."""
    return contents.with_tables("steps", lambda rank, rows: rows.where(rows.matches("phase", "timed".__eq__)))


def sides_within(contents: RunContents, spans: Spans, before: float) -> RunContents:
    """The Run with the rows of side tables in `spans` only, and in the time before that is `before` times as long."""

    def inside(rank: Rank, rows: Table, first: str, last: str) -> Table:
        if rank not in spans:
            return rows
        begin, finish = spans[rank]
        begin -= round(before * (finish - begin))
        return rows.where((rows.ints(last) >= begin) & (rows.ints(first) <= finish))

    for name, first, last in (
        ("stages", "start_ns", "end_ns"),
        ("accesses", "start_ns", "start_ns"),
        ("memory", "at_ns", "at_ns"),
        ("allocations", "at_ns", "at_ns"),
        ("samples", "at_ns", "at_ns"),
    ):
        contents = contents.with_tables(name, lambda rank, rows, a=first, b=last: inside(rank, rows, a, b))  # type: ignore[misc]
    return contents


def works_of(rows: Table) -> np.ndarray:
    """Row that stands for each row: of a call that launched work of a GPU, the (first) work; of all others, itself."""
    row = np.arange(len(rows))
    correlation = rows.ints("correlation")
    work = np.flatnonzero(rows.is_kind(*_ON_GPU) & (rows.ints("stream") >= 0) & (correlation > 0))
    calls = np.flatnonzero(rows.is_kind("runtime") & (correlation > 0))
    known, first = np.unique(correlation[work], return_index=True)
    if not len(known):
        return row
    at = np.minimum(np.searchsorted(known, correlation[calls]), len(known) - 1)
    found = known[at] == correlation[calls]
    row[calls[found]] = work[first[at[found]]]
    return row


def names_of(contents: RunContents) -> list[str]:
    """The names of events, those of most rows first. A call that launches work of a GPU has the name of the work."""
    total: dict[str, int] = {}
    for (table, _), rows in contents.tables.items():
        if table == "events":
            codes, names = rows.codes("name")
            for code, count in zip(*np.unique(codes[works_of(rows)], return_counts=True), strict=True):
                if code >= 0:
                    total[names[code]] = total.get(names[code], 0) + int(count)
    return sorted(total, key=lambda name: (-total[name], name))


def without_names(contents: RunContents, leave_out: Collection[str]) -> RunContents:
    """The Run without the events of these names (`names_of`)."""
    dropped = set(leave_out)

    def kept(rank: Rank, rows: Table) -> Table:
        return rows.where(~rows.matches("name", dropped.__contains__)[works_of(rows)])

    return contents.with_tables("events", kept)


SideRow = tuple[str, Rank, int]
"""A row of a side table: name of the table, rank, number of the row."""


def side_rows_of(contents: RunContents) -> list[SideRow]:
    """The rows of all side tables."""
    return [
        (name, rank, row)
        for (name, rank), rows in contents.tables.items()
        if name in SIDE_TABLES
        for row in range(len(rows))
    ]


def without_side_rows(contents: RunContents, leave_out: Collection[SideRow]) -> RunContents:
    """The Run without these rows of side tables."""
    dropped: dict[tuple[str, Rank], list[int]] = {}
    for name, rank, row in leave_out:
        dropped.setdefault((name, rank), []).append(row)
    changed = {
        key: rows.where(np.setdiff1d(np.arange(len(rows)), dropped[key])) if key in dropped else rows
        for key, rows in contents.tables.items()
    }
    return replace(contents, tables={key: rows for key, rows in changed.items() if len(rows) or key not in dropped})


Event = tuple[Rank, int]
"""A rank and the start of one of its events, ns."""


def moments_of(contents: RunContents) -> list[Event]:
    """The rank and start of each event that stands for itself (`works_of`), by rank and time."""
    return [
        (rank, start)
        for (table, rank), rows in contents.tables.items()
        if table == "events"
        for start in np.unique(rows.ints("start_ns")[works_of(rows)]).tolist()
    ]


def without_moments(contents: RunContents, leave_out: Collection[Event]) -> RunContents:
    """The Run without these events (`moments_of`), and without the calls that launched them."""

    def kept(rank: Rank, rows: Table) -> Table:
        starts = [start for of, start in leave_out if of == rank]
        return rows.where(~np.isin(rows.ints("start_ns")[works_of(rows)], starts))

    return contents.with_tables("events", kept)
