"""Write a complete Run at once."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from esprof.core.types import Rank
from esprof.run.directory import write_flight, write_meta, write_table
from esprof.run.flight.log import FlightLog
from esprof.run.run import RunMeta
from esprof.run.schema import Table


def write_run(
    path: Path,
    meta: RunMeta,
    tables: Mapping[tuple[str, Rank], Table],
    flights: Mapping[Rank, FlightLog] = MappingProxyType({}),
) -> None:
    """`tables` is keyed by (table name, rank). Raises OutputError where the Run cannot be written."""
    for (name, rank), rows in tables.items():
        write_table(path, name, rank, rows)
    for rank, log in flights.items():
        write_flight(path, rank, log)
    write_meta(path, meta)
