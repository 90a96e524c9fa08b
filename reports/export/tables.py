"""Timelines as a table: Parquet with times in ns since the epoch, CSV with times in µs since the window began."""

from collections.abc import Iterable
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from esprof.analyzers.tracks.node_rows import NODES
from esprof.core.types import NS_PER_US, Ns

_NS, _US = "_ns", "_us"
_DURATIONS = ("measured_dur_ns",)
_IN_US = pa.schema(
    [(column.name.removesuffix(_NS) + _US, pa.float64()) if column.name.endswith(_NS) else column for column in NODES]
)


def write_parquet(batches: Iterable[pa.RecordBatch], file: BinaryIO) -> None:
    with pq.ParquetWriter(file, NODES) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_csv(batches: Iterable[pa.RecordBatch], file: BinaryIO, start_ns: Ns) -> None:
    """Moments are written relative to `start_ns`."""
    with pa.csv.CSVWriter(file, _IN_US) as writer:
        for batch in batches:
            columns = [_in_us(batch[column.name], column, start_ns) for column in NODES]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_IN_US))


def _in_us(values: pa.Array, column: pa.Field, start_ns: Ns) -> pa.Array:
    if not column.name.endswith(_NS):
        return values
    since = values if column.name in _DURATIONS else pc.subtract(values, start_ns)
    return pc.divide(since.cast(pa.float64()), float(NS_PER_US))
