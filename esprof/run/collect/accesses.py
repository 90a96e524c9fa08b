"""The table of samples that the DataLoaders of a rank read."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from esprof.core.types import Ns
from esprof.run.collect.notes import RankNotes
from esprof.run.collect.rolled_rows import Fetch, Next, RankRows
from esprof.run.collect.stages import fetches_by_pass, passes
from esprof.run.schema import ACCESSES, Table, table

_KEY = np.dtype("<i8")


class _Batch(NamedTuple):
    """A batch whose keys were noted; an unknown number is -1."""

    loader: int
    batch: int
    worker: int
    start_ns: Ns
    items: int
    keys: np.ndarray


def accesses_of(notes: RankNotes, rows: RankRows) -> Table:
    """Return the `accesses` table of one rank, without batches of unknown passes."""
    loaders = passes(rows)
    found = [_batch(loaders[row.iterator, row.epoch], row, -1) for row in rows.nexts if row.keys is not None]
    found += [
        _batch(loaders[key], row, row.worker)
        for key, row in fetches_by_pass(notes, rows)
        if row.keys is not None and key in loaders
    ]
    if not found:
        return table({}, ACCESSES)
    found.sort(key=lambda batch: batch.start_ns)
    samples = [len(batch.keys) for batch in found]
    columns = {
        name: _known(np.repeat(np.array([getattr(batch, name) for batch in found], np.int64), samples))
        for name in ("loader", "batch", "worker", "start_ns", "items")
    }
    return table(columns | {"key": np.concatenate([batch.keys for batch in found])}, ACCESSES)


def _batch(loader: int, row: Next | Fetch, worker: int) -> _Batch:
    assert row.keys is not None
    whole = len(row.keys) // _KEY.itemsize * _KEY.itemsize  # A corrupt line may hold any bytes.
    keys = np.frombuffer(row.keys[:whole], _KEY).astype(np.int64)
    number, items = (-1 if value is None else value for value in (row.batch, row.items))
    return _Batch(loader, number, worker, row.start_ns, items, keys)


def _known(values: np.ndarray) -> pa.Array:
    return pa.array(values, mask=values < 0)
