"""The Run directory: `run.json`, and one Parquet file a rank for each table. Every file is whole or absent."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from esprof.errors import InputError
from esprof.output import atomic_file, write_bytes
from esprof.trace.run import SCHEMA, Run, RunMeta, Warning
from esprof.trace.schema import EVENTS, STACKS, STAGES, STEPS, Table
from esprof.types import Rank

SCHEMAS = {"events": EVENTS, "steps": STEPS, "stages": STAGES, "stacks": STACKS}


def table_path(path: Path, name: str, rank: Rank) -> Path:
    return path / name / f"rank-{rank:05d}.parquet"


def write_table(path: Path, name: str, rank: Rank, rows: Table) -> None:
    """Write one table of one rank into the Run directory `path`."""
    with atomic_file(table_path(path, name, rank)) as file:
        pq.write_table(rows.arrow, file, compression="zstd")


def write_meta(path: Path, meta: RunMeta) -> None:
    """Write `run.json`, the last file of a Run: a directory without it is not a Run yet."""
    write_bytes(path / "run.json", msgspec.json.format(msgspec.json.encode(meta), indent=1) + b"\n")


def write_run(path: Path, meta: RunMeta, tables: Mapping[tuple[str, Rank], Table]) -> None:
    """Write a whole Run; `tables` is keyed by (table name, rank)."""
    for (name, rank), rows in tables.items():
        write_table(path, name, rank, rows)
    write_meta(path, meta)


def read_run(path: Path) -> Run:
    """Open a Run directory. A rank whose events are missing or broken is left out and named in `warnings`.

    Raises InputError where `run.json` is missing or broken, or where no rank is whole.
    """
    meta = _read_meta(path / "run.json")
    whole, warnings = [], []
    for rank in meta.ranks:
        fault = _fault(table_path(path, "events", rank.rank))
        if fault is None:
            whole.append(rank)
        else:
            warnings.append(Warning("rank-unreadable", f"rank {rank.rank}: {fault}", (rank.rank,)))
    if not whole:
        raise InputError("no rank of this run is readable", path=path, remedy="\n  ".join(w.message for w in warnings))
    meta = msgspec.structs.replace(meta, ranks=tuple(whole))
    return Run(meta, lambda name, rank: _read_table(path, name, rank), path, tuple(warnings))


def _read_meta(path: Path) -> RunMeta:
    try:
        raw = path.read_bytes()
        schema = msgspec.json.decode(raw, type=_Envelope).schema
        if schema != SCHEMA:
            raise InputError(f"schema {schema!r} is not {SCHEMA!r}", path=path, remedy="Use the esprof that wrote it.")
        return msgspec.json.decode(raw, type=RunMeta)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except msgspec.MsgspecError as error:
        raise InputError(f"is not a valid run.json: {error}", path=path, remedy="Record the run again.") from error


class _Envelope(msgspec.Struct):
    schema: str


def _fault(path: Path) -> str | None:
    try:
        found = pq.read_schema(path)
    except FileNotFoundError:
        return "its events are missing"
    except (OSError, pa.ArrowException) as error:
        return f"its events cannot be read ({str(error).splitlines()[0]})"
    lacks = [name for name in EVENTS.names if name not in found.names]
    return f"its events lack the columns {', '.join(lacks)}" if lacks else None


def _read_table(path: Path, name: str, rank: Rank) -> Table | None:
    file = table_path(path, name, rank)
    if not file.exists():
        return None
    try:
        return Table(pq.read_table(file).cast(SCHEMAS[name]))
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise InputError(
            f"cannot be read: {str(error).splitlines()[0]}", path=file, remedy="Record the run again."
        ) from error
