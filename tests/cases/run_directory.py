"""Write a complete Run at once."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq

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


def names_in(run: Path, names: Iterable[str]) -> list[str]:
    """Those of `names` that occur as words in any file of a Run, before or after decompression."""
    files = [file for file in run.rglob("*") if file.is_file()]
    text = "".join(file.read_bytes().decode("latin1") for file in files)
    text += "".join(str(pq.read_table(file).to_pylist()) for file in files if file.suffix == ".parquet")
    return [name for name in names if re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", text, re.IGNORECASE)]
