"""Read and write Run directories.

Every file is complete or absent, and only its owner may read it, as it has names of files, hosts and functions of the job.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from esprof.core.credentials import without_secrets
from esprof.core.disk import open_regular, read_regular
from esprof.core.errors import InputError, OutputError, unreadable
from esprof.core.output import atomic_file, claim
from esprof.core.types import Rank
from esprof.run import files
from esprof.run.files import flight_path, table_path
from esprof.run.flight.log import FlightLog
from esprof.run.logs import HISTORY, ROUNDS
from esprof.run.probes import SCHEMA as PROBES_SCHEMA
from esprof.run.probes import Probes
from esprof.run.reading import memory_limit
from esprof.run.run import SCHEMA, Run, RunMeta, RunWarning, WarningCode
from esprof.run.schema import (
    ACCESSES,
    ADDED,
    ALLOCATIONS,
    EVENTS,
    LABELS,
    MEMORY,
    MODULES,
    SAMPLES,
    STACKS,
    STAGES,
    STEPS,
    TRAVELS,
    Table,
    table,
)

SCHEMAS = {
    "events": EVENTS,
    "steps": STEPS,
    "stages": STAGES,
    "accesses": ACCESSES,
    "labels": LABELS,
    "travels": TRAVELS,
    "memory": MEMORY,
    "allocations": ALLOCATIONS,
    "modules": MODULES,
    "samples": SAMPLES,
    "stacks": STACKS,
}

_Content = TypeVar("_Content")

_BYTES_A_VALUE = 8
_WITHOUT_IT = "Delete this file to load the run without it, or record the job again."


_SMALLEST_LEVEL = 19
"""Level of zstd above which compression takes more memory and gains little."""


def claim_run(out: Path, *, force: bool) -> None:
    """Raise OutputError if no Run may be written to `out`: with `force`, a Run may be replaced, nothing else."""
    claim(out, force=force)
    if out.exists() and not files.is_complete(out):
        raise OutputError("is not a Run and is not overwritten", path=out, remedy="Choose another name.")


def write_table(path: Path, name: str, rank: Rank, rows: Table) -> None:
    """Write one table of one rank into the Run directory `path`. Raises OutputError."""
    with _private_file(path, table_path(path, name, rank)) as file:
        pq.write_table(rows.arrow, file, compression="zstd")


def write_small_table(path: Path, name: str, rank: Rank, rows: Table) -> None:
    """As `write_table`, but slower and smaller: without statistics, and with the bytes of numbers split into streams."""
    texts = [field.name for field in rows.arrow.schema if pa.types.is_dictionary(field.type)]
    numbers = {field.name: "BYTE_STREAM_SPLIT" for field in rows.arrow.schema if pa.types.is_integer(field.type)}
    with _private_file(path, table_path(path, name, rank)) as file:
        pq.write_table(
            # Dictionaries hold all texts of the table that the rows were selected from.
            rows.arrow.cast(
                pa.schema([(f.name, pa.string() if f.name in texts else f.type) for f in rows.arrow.schema])
            ),
            file,
            compression="zstd",
            compression_level=_SMALLEST_LEVEL,
            use_dictionary=texts,
            column_encoding=numbers,
            write_statistics=False,
            store_schema=False,
        )


def write_flight(path: Path, rank: Rank, log: FlightLog) -> None:
    """Write the flight log of one rank into the Run directory `path`. Raises OutputError."""
    with _private_file(path, flight_path(path, rank)) as file:
        file.write(msgspec.json.encode(log))


def write_probes(path: Path, probes: Probes) -> None:
    """Write measurements into the Run directory `path`. Raises OutputError."""
    with _private_file(path, path / files.PROBES) as file:
        file.write(msgspec.json.format(msgspec.json.encode(probes), indent=1) + b"\n")


def read_probes(path: Path) -> Probes | None:
    """Return the measurements in the Run directory `path`; None if there are none. Raises InputError if the file is
    broken."""
    file = path / files.PROBES
    try:
        raw = read_regular(file, memory_limit())
        schema = msgspec.json.decode(raw, type=_RunEnvelope).schema
        if schema != PROBES_SCHEMA:
            raise InputError(f"schema {schema!r} is not {PROBES_SCHEMA!r}", path=file, remedy="Probe the job again.")
        probes = msgspec.json.decode(raw, type=Probes)
        return msgspec.structs.replace(probes, command=without_secrets(probes.command))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(file, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is not a valid probes.json: {error}", path=file, remedy="Probe the job again.") from error


def write_meta(path: Path, meta: RunMeta) -> None:
    """Write `run.json`, the last file of a Run, which makes it complete. Raises OutputError."""
    with _private_file(path, path / files.META) as file:
        file.write(msgspec.json.format(msgspec.json.encode(meta), indent=1) + b"\n")


def read_run(path: Path) -> Run:
    """Open a Run directory. Ranks without readable events and broken side tables are skipped with a warning.

    Raises InputError if `run.json` is missing or broken, or if no rank is readable.
    """
    meta = _read_meta(path / files.META)
    whole, broken = [], set()
    warnings: list[RunWarning] = []
    for rank in meta.ranks:
        for name in SCHEMAS:
            fault = _fault(path, name, rank.rank)
            if fault is not None:
                broken.add((name, rank.rank))
                code = "rank-unreadable" if name == "events" else WarningCode.TABLE_UNREADABLE
                warnings.append(RunWarning(code, f"rank {rank.rank}: {fault}", (rank.rank,)))
        if ("events", rank.rank) not in broken:
            whole.append(rank)
    probes = _unless_broken(read_probes, path, "probes", warnings)
    history = _unless_broken(HISTORY.read, path, "history", warnings) or ()
    rounds = _unless_broken(ROUNDS.read, path, "rounds of tuning", warnings) or ()
    if not whole:
        faults = "; ".join(warning.message for warning in warnings) or "run.json lists none"
        raise InputError(f"no rank of this run is readable ({faults})", path=path, remedy="Record the job again.")

    def read(name: str, rank: Rank) -> Table | None:
        found = None if (name, rank) in broken else _read_table(path, name, rank)
        if name == "events" and found is None:
            raise InputError("is missing or broken", path=table_path(path, name, rank), rank=rank)
        return found

    return Run(
        msgspec.structs.replace(meta, ranks=tuple(whole)),
        read,
        path,
        tuple(warnings),
        partial(_read_flight, path),
        probes=probes,
        history=history,
        rounds=rounds,
    )


def _unless_broken(
    read: Callable[[Path], _Content], path: Path, what: str, warnings: list[RunWarning]
) -> _Content | None:
    """What `read` finds in the Run `path`; None, with one more warning, if it is broken."""
    try:
        return read(path)
    except InputError as error:
        warnings.append(RunWarning(WarningCode.TABLE_UNREADABLE, f"its {what} cannot be read ({error.reason})"))
        return None


def _private_file(run: Path, path: Path) -> AbstractContextManager[BinaryIO]:
    with suppress(OSError):  # `atomic_file` raises and reports the same error.
        run.mkdir(0o700, parents=True, exist_ok=True)
    return atomic_file(path, private=True)


def _read_flight(run: Path, rank: Rank) -> FlightLog | None:
    path = flight_path(run, rank)
    try:
        return msgspec.json.decode(read_regular(path, memory_limit()), type=FlightLog)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is not a valid flight log: {error}", path=path, remedy=_WITHOUT_IT) from error


def _read_meta(path: Path) -> RunMeta:
    try:
        raw = read_regular(path, memory_limit())
        schema = msgspec.json.decode(raw, type=_RunEnvelope).schema
        if schema != SCHEMA:
            remedy = "Use the version of esprof that wrote it."
            raise InputError(f"schema {schema!r} is not {SCHEMA!r}", path=path, remedy=remedy)
        meta = msgspec.json.decode(raw, type=RunMeta)
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is not a valid run.json: {error}", path=path, remedy="Record the job again.") from error
    # Earlier versions stored the command as it was.
    return msgspec.structs.replace(meta, command=without_secrets(meta.command))


class _RunEnvelope(msgspec.Struct):
    schema: str


def _fault(run: Path, name: str, rank: Rank) -> str | None:
    """Return the defect of a table according to its footer; None if there is none, or if a side table is absent."""
    path = table_path(run, name, rank)
    try:
        os.close(open_regular(path))
        footer = pq.read_metadata(path)
        present = {*footer.schema.names, *ADDED.get(name, ())}
    except FileNotFoundError:
        return "its events are missing" if name == "events" else None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        return f"its {name} cannot be read ({_first_line(error)})"
    lacks = [column for column in SCHEMAS[name].names if column not in present]
    if lacks:
        return f"its {name} lack the columns {', '.join(lacks)}"
    # Parquet compresses equal values to almost nothing, so the size of the file says little about its memory.
    if footer.num_rows * len(SCHEMAS[name]) * _BYTES_A_VALUE > memory_limit():
        return f"its {name} are larger than the memory limit ({footer.num_rows} rows)"
    return None


def _read_table(run: Path, name: str, rank: Rank) -> Table | None:
    path, schema = table_path(run, name, rank), SCHEMAS[name]
    if not path.exists():
        return None
    try:
        with pq.ParquetFile(path) as file:
            found = file.read(columns=schema.names)
            return table({column: found[column] for column in found.column_names}, schema)
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        reason = f"cannot be read: {_first_line(error)}"
        raise InputError(reason, path=path, remedy=_WITHOUT_IT, rank=rank) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
