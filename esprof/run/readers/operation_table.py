"""Tables of timed operations as Parquet, one or several files: docs/how-to/tables.md describes the columns."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.types import Rank
from esprof.run.groups import Group, joined_groups
from esprof.run.readers.reader import Reader
from esprof.run.reading import run_all
from esprof.run.run import RankMeta, Run, RunMeta, RunWarning, WarningCode
from esprof.run.schema import Table
from esprof.run.tables.columns import read_columns, sources_of, wrong
from esprof.run.tables.events import events_of
from esprof.run.tables.groups import groups_of, with_groups_of_stages
from esprof.run.tables.steps import one_window


def _read(
    paths: Sequence[Path], named: Path, executor: Executor | None, columns: Mapping[str, str] | None = None
) -> Run:
    """Read all tables. Unreadable ones become warnings, unless all are unreadable.

    `columns` maps names of columns to those of the files (`sources_of`). Raises UsageError for an unknown name.
    """
    columns = columns or {}
    sources_of(columns)
    results = run_all(executor, _attempt, paths, [columns] * len(paths))
    tables = [result for result in results if not isinstance(result, InputError)]
    faults = [result for result in results if isinstance(result, InputError)]
    if not tables:
        raise faults[0]
    ranks = [rank for one in tables for rank in pc.unique(one["rank"]).to_pylist()]
    if twice := {rank for rank in ranks if ranks.count(rank) > 1}:
        raise wrong(
            named, f"two of these tables hold {readable.ranks(sorted(twice))}", "Name the tables of one job only."
        )
    rows, warnings = _prepared(pa.concat_tables(tables), columns)
    groups = groups_of(rows)
    events = {rank: events_of(of_rank, rank, groups) for rank, of_rank in _by_rank(rows).items()}
    faulty = [RunWarning("trace-unreadable", str(fault)) for fault in faults]
    return _run_of(events, groups, named, [*faulty, *warnings], chosen=_has_places(columns))


def _prepared(rows: pa.Table, columns: Mapping[str, str]) -> tuple[pa.Table, list[RunWarning]]:
    """The rows with steps and groups."""
    warnings = []
    if not pc.count(rows["step"]).as_py():
        rows = rows.set_column(rows.column_names.index("step"), "step", pa.array(np.zeros(len(rows), np.int64)))
        warnings.append(RunWarning(WarningCode.NO_STEPS, "the table has no steps; all times are of the whole table"))
    if _has_places(columns) and "group" not in columns:
        rows, left_out = with_groups_of_stages(rows)
        if left_out:
            text = f"{left_out} sends and receives of the first and last stage were left out: they have no other side"
            warnings.append(RunWarning("events-left-out", text))
    rows, of_steps = one_window(rows)
    return rows, [*warnings, *of_steps]


def _has_places(columns: Mapping[str, str]) -> bool:
    """Whether the table tells the place of each rank. Then it has one rank of each tensor-parallel group."""
    return not {"data", "stage"}.isdisjoint(columns)


def _by_rank(rows: pa.Table) -> dict[Rank, pa.Table]:
    # Operations that start together come in the same order on all ranks.
    rows = rows.sort_by([("rank", "ascending"), ("start", "ascending"), ("op", "ascending")])
    rank = rows["rank"].to_numpy()
    numbers, first = np.unique(rank, return_index=True)
    ends = np.append(first[1:], len(rank))
    return {int(of): rows.slice(at, end - at) for of, at, end in zip(numbers, first, ends, strict=True)}


def _run_of(
    events: Mapping[Rank, Table], groups: Mapping[str, Group], named: Path, warnings: list[RunWarning], *, chosen: bool
) -> Run:
    world = max([*events, *(rank for group in groups.values() for rank in group.ranks)]) + 1
    missing = tuple(sorted(set(range(world)) - set(events)))
    if missing and not chosen:
        lacks = f"no operation of {readable.ranks(missing)}; the job had {world} ranks"
        warnings.append(RunWarning(WarningCode.RANK_MISSING, lacks, missing))
    meta = RunMeta(
        source="table",
        world_size=len(events) if chosen else world,
        chosen_ranks=chosen,
        ranks=tuple(RankMeta(rank=rank, events=len(of_rank)) for rank, of_rank in events.items()),
        groups=joined_groups(groups.values()),
    )
    return Run(meta, lambda name, rank: events[rank] if name == "events" else None, named, tuple(warnings))


def _attempt(path: Path, columns: Mapping[str, str]) -> pa.Table | InputError:
    try:
        return read_columns(path, columns)
    except InputError as error:
        return error


READER = Reader(
    name="table of operations",
    recognises=lambda path: path.suffix == ".parquet",
    read=_read,
    with_columns=lambda columns: partial(_read, columns=columns),
)
