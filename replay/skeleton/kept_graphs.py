"""Graphs of ranks in files, for as long as a run is answered: each rank is built once, and read after that.

A file holds the arrays of a graph in one row of an Arrow table, compressed, and its texts in the schema.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, fields
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Dfg, Lane, StepMarks

BYTES_AN_EVENT = 40
"""What the graph of a rank takes on disk for each of its events, at most about: `benchmarks.scale` measures
`kept_bytes_an_event`."""

_MAX_SHARE_OF_FREE = 0.5
"""Of the free space that graphs may take. Where they would take more, none is kept."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_TEXTS = b"esprof"


class _Texts(msgspec.Struct, frozen=True):
    """What a graph has beside its arrays."""

    t0_ns: Ns
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    steps: tuple[int, ...]
    ranks: tuple[Rank, ...]


@dataclass(frozen=True)
class GraphFile:
    """Where the graph of a rank is kept. On another host, or a full disk, it is not: then the rank is built again."""

    path: Path

    def write(self, dfg: Dfg) -> None:
        """Keep the graph if the folder is there and has room."""
        if not self.path.parent.is_dir():
            return
        arrays = {field.name: getattr(dfg, field.name) for field in fields(dfg)}
        arrays = {name: values for name, values in arrays.items() if isinstance(values, np.ndarray)}
        arrays |= {"first": dfg.marks.first.ravel(), "last": dfg.marks.last.ravel()}
        texts = _Texts(dfg.t0_ns, dfg.names, dfg.lanes, dfg.marks.steps, dfg.marks.ranks)
        columns = [pa.ListArray.from_arrays([0, len(values)], pa.array(values)) for values in arrays.values()]
        row = pa.record_batch(columns, [*arrays])
        schema = row.schema.with_metadata({_TEXTS: msgspec.json.encode(texts)})
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema, options=_OPTIONS) as file:
                file.write(row.replace_schema_metadata(schema.metadata))
            part.replace(self.path)
        except OSError:
            part.unlink(missing_ok=True)

    def read(self) -> Dfg | None:
        """The graph that was kept; None if there is none."""
        try:
            with pa.OSFile(str(self.path)) as source, pa.ipc.open_file(source) as file:
                row = file.get_batch(0)
        except (OSError, pa.ArrowException):
            return None
        texts = msgspec.json.decode(row.schema.metadata[_TEXTS], type=_Texts)
        arrays: dict[str, Any] = {
            # Copied, since arrays of Arrow cannot be written to.
            name: np.array(column.values.to_numpy(zero_copy_only=False))
            for name, column in zip(row.schema.names, row.columns, strict=True)
        }
        first, last = (arrays.pop(name).reshape(len(texts.steps), -1) for name in ("first", "last"))
        marks = StepMarks(texts.steps, texts.ranks, first, last)
        return Dfg(t0_ns=texts.t0_ns, names=texts.names, lanes=texts.lanes, marks=marks, **arrays)


class KeptGraphs:
    """A folder for the graphs of the ranks of a run with so many events. It is removed with this object, or when the
    process ends."""

    def __init__(self, events: int) -> None:
        self.folder: Path | None = None
        """None if there is no folder for temporary files (TMPDIR), or too little room on its disk."""
        try:
            if events * BYTES_AN_EVENT > _MAX_SHARE_OF_FREE * shutil.disk_usage(tempfile.gettempdir()).free:
                return
            self.folder = Path(tempfile.mkdtemp(prefix="esprof-graphs-"))
        except OSError:
            return
        # Unlike `weakref.finalize`, it also runs where a process of a pool ends.
        Finalize(self, shutil.rmtree, (self.folder, True), exitpriority=0)

    def of(self, rank: Rank) -> GraphFile | None:
        return None if self.folder is None else GraphFile(self.folder / f"{rank}.arrow")
