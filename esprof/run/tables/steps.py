"""The steps of a table, which may be samples of a long job: one window, without the time between them."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from esprof.core import readable
from esprof.core.errors import InputError
from esprof.run.run import RunWarning
from esprof.run.tables.columns import COLUMNS_PAGE


def one_window(rows: pa.Table) -> tuple[pa.Table, tuple[RunWarning, ...]]:
    """The rows with the steps that all ranks have, and without the time between steps that do not follow each other.

    All ranks are moved by the same time. Raises InputError where the order of the steps differs from that of their numbers.
    """
    rows, warnings = _shared(rows)
    number, first, last = spans_of(rows)
    between = np.where(np.diff(number) > 1, np.maximum(first[1:] - last[:-1], 0), 0)
    if not (np.diff(number) > 1).any():
        return rows, warnings
    text = (
        f"{len(number)} steps of {number[0]} to {number[-1]} are in the table; they are analysed as one window, without "
        "the time between them"
    )
    earlier = np.append(0, np.cumsum(between))[
        np.maximum(np.searchsorted(first, rows["start"].to_numpy(), "right") - 1, 0)
    ]
    for name in ("start", "end"):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(rows[name].to_numpy() - earlier))
    return rows, (*warnings, RunWarning("steps-joined", text))


class TableSteps(NamedTuple):
    """The steps of some rows, by number; arrays have an entry for each."""

    number: np.ndarray
    start_ns: np.ndarray
    """Start of the first operation."""
    end_ns: np.ndarray
    """End of the last operation."""


def spans_of(rows: pa.Table) -> TableSteps:
    """The steps of rows. Raises InputError where their order differs from that of their numbers."""
    spans = rows.filter(pc.is_valid(rows["step"])).group_by("step").aggregate([("start", "min"), ("end", "max")])
    spans = spans.sort_by("step")
    found = TableSteps(*(spans[name].to_numpy() for name in ("step", "start_min", "end_max")))
    if (np.diff(found.start_ns) <= 0).any():
        raise InputError("has steps whose order differs from that of their numbers", remedy=COLUMNS_PAGE)
    return found


def _shared(rows: pa.Table) -> tuple[pa.Table, tuple[RunWarning, ...]]:
    """The rows without the steps that some ranks lack, if the ranks share any."""
    used = rows.group_by(["step", "rank"]).aggregate([])
    numbers, count = np.unique(used.filter(pc.is_valid(used["step"]))["step"].to_numpy(), return_counts=True)
    lost = numbers[count < count.max(initial=0)]
    if len(numbers) == 0 or count.max() < len(pc.unique(used["rank"])) or not len(lost):
        return rows, ()
    text = f"{readable.numbered('step', lost.tolist())} left out: not all ranks recorded them"
    kept = pc.invert(pc.is_in(rows["step"], value_set=pa.array(lost)))
    return rows.filter(kept), (RunWarning("steps-left-out", text),)
