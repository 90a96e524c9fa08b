"""Join an execution trace to the Kineto trace of the same steps: it tells what Kineto left out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from esprof.core.types import Rank
from esprof.run.execution.trace import ExecutionTrace, Operation
from esprof.run.kineto.rows import Texts, TraceRows
from esprof.run.kineto.scan import MISSING

_IDS = ("Record function id", "External id")
"""Keys that may hold the id of an operation in the execution trace. Kineto of 2021 has the second one only."""
MIN_ALIKE = 0.9
"""Least share of the operations with an id of the execution trace that must have the name of it."""

_TEXTS: dict[str, Callable[[Operation], Any]] = {
    "Input Dims": lambda one: one.shapes,
    "Input type": lambda one: one.types,
    "Collective name": lambda one: one.collective,
    "dtype": lambda one: one.dtype,
    "Process Group Name": lambda one: one.group,
    "Process Group Ranks": lambda one: one.ranks,
}
_NUMBERS: dict[str, Callable[[Operation], int | None]] = {
    "In msg nelems": lambda one: one.sent,
    "Out msg nelems": lambda one: one.received,
}


class Joined(NamedTuple):
    """The rows of a trace, completed by an execution trace."""

    rows: TraceRows
    twin: ExecutionTrace | None


def joined(rows: TraceRows, twins: Sequence[ExecutionTrace], rank: Rank | None) -> Joined:
    """Complete the rows of one rank by its execution trace: that of its process, or else of its rank.

    Values that the rows have are kept. Operations are matched by id and name.
    """
    twin = _twin(rows, twins, rank)
    at = _operation_of(rows, twin) if twin is not None else None
    if twin is None or at is None:
        return Joined(rows, None)
    operations = list(twin.operations.values())
    texts = {key: _texts(map(value, operations), at) for key, value in _TEXTS.items()}
    numbers = {key: _numbers(map(value, operations), at) for key, value in _NUMBERS.items()}
    return Joined(rows.completed(texts, numbers), twin)


def _twin(rows: TraceRows, twins: Sequence[ExecutionTrace], rank: Rank | None) -> ExecutionTrace | None:
    pids = set(np.unique(rows.numbers("pid")).tolist())
    of_process = [twin for twin in twins if twin.pid in pids]
    of_rank = [twin for twin in of_process or twins if twin.rank is not None and twin.rank == rank]
    for found in (of_process, of_rank, twins):
        if len(found) == 1 and (found is not twins or found[0].pid is None):
            return found[0]
    return None


def _operation_of(rows: TraceRows, twin: ExecutionTrace) -> np.ndarray | None:
    """Position of each row's operation in the execution trace, -1 where it has none; None if most names differ."""
    ids = np.array(list(twin.operations), np.int64)
    order = np.argsort(ids)
    names = rows.texts("name")
    code = {name: number for number, name in enumerate(names.values)}
    # -2 for names that the trace does not have: no row has it.
    named = np.array([code.get(one.name, -2) for one in twin.operations.values()], np.int64)
    for key in _IDS:
        wanted = rows.numbers(key)
        place = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
        found = order[place] if len(ids) else np.zeros(0, np.int64)
        has_id = (wanted != MISSING) & (ids[found] == wanted) if len(ids) else np.zeros(len(rows), bool)
        alike = has_id & (named[found] == names.codes) if len(ids) else has_id
        if alike.any() and alike.sum() >= MIN_ALIKE * has_id.sum():
            return np.where(alike, found, -1)
    return None


def _texts(values: Iterable[Any], at: np.ndarray) -> Texts:
    distinct: dict[Any, int] = {}
    codes = [-1 if value is None else distinct.setdefault(value, len(distinct)) for value in values]
    return Texts(np.array([*codes, -1], np.int64)[at], list(distinct))


def _numbers(values: Iterable[int | None], at: np.ndarray) -> np.ndarray:
    known = [MISSING if value is None or not 0 <= value < 1 << 62 else value for value in values]
    found: np.ndarray = np.array([*known, MISSING], np.int64)[at]
    return found
