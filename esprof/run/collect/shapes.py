"""Give the operations of timed steps the shapes of the same calls in the steps with stacks.

Recording shapes slows a step, so the steps with stacks record them (`Settings.shapes_in`). A call is identified by its
thread, its operation, and its number among the calls of that operation on the thread in the step. It is the same call in
another step if the thread calls the operation as often there, and if the batches of both steps have the same size, as far as
it is known. Where the steps with stacks contradict each other, the shapes of the call are unknown.
"""

from collections.abc import Hashable, Mapping

import numpy as np
import pyarrow as pa

from esprof.run.schema import EVENTS, Table

MIN_KNOWN = 0.95
"""Least share of a rank's operations whose shapes must be known. With fewer its steps differ, and the shapes of what stays
the same, such as updates of parameters, would pass for those of all work. What some steps do besides, such as logging, is
less."""

_UNSEEN, _CONTRADICTED = -1, -2


def with_shapes(timed: Table, noted: Table, batches: Mapping[int, Hashable]) -> Table | None:
    """Give the operations of `timed` the shapes that they have in the steps of `noted`.

    Both are events of one process, by start. `batches` has the size of each step's batch; unknown sizes count as equal.
    Returns None if fewer than MIN_KNOWN are known.
    """
    rows, seen_rows = (np.flatnonzero(one.is_kind("op") & (one.ints("step") >= 0)) for one in (timed, noted))
    if not len(rows):
        return timed
    calls, seen_calls = _calls((timed, rows), (noted, seen_rows))
    step, seen_step = timed.ints("step")[rows], noted.ints("step")[seen_rows]
    codes, texts = noted.codes("shapes")
    # An operation without inputs has no shapes, which is known, too.
    seen_shapes = np.where(codes < 0, len(texts), codes)[seen_rows]
    found = np.full(len(rows), _UNSEEN)
    for number in np.unique(seen_step).tolist():
        here = seen_step == number
        shapes = _looked_up(calls, seen_calls[here], seen_shapes[here])
        alike = [one for one in np.unique(step).tolist() if batches.get(one) == batches.get(number)]
        tells = (shapes != _UNSEEN) & np.isin(step, alike)
        found = np.where(tells & (found == _UNSEEN), shapes, np.where(tells & (found != shapes), _CONTRADICTED, found))
    if np.mean(found >= 0) < MIN_KNOWN:
        return None
    has_shapes = (found >= 0) & (found < len(texts))
    return _filled(timed, rows[has_shapes], found[has_shapes], texts)


def _calls(*tables: tuple[Table, np.ndarray]) -> list[np.ndarray]:
    """Number the calls in these rows of each table: the same call has the same number in all steps of all tables."""
    names: dict[str, int] = {}
    operation = _numbered(
        np.concatenate([events.ints("tid")[rows] for events, rows in tables]),
        np.concatenate([_names(events, names)[rows] for events, rows in tables]),
    )
    of_step = _numbered(operation, np.concatenate([events.ints("step")[rows] for events, rows in tables]))
    count = np.bincount(of_step)
    order = np.argsort(of_step, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    calls = _numbered(operation, _numbered(number, count[of_step]))
    return np.split(calls, np.cumsum([len(rows) for _, rows in tables])[:-1])


def _names(events: Table, names: dict[str, int]) -> np.ndarray:
    """The number of each event's name; `names`, which has those of all tables, is extended."""
    codes, texts = events.codes("name")
    found: np.ndarray = np.array([*(names.setdefault(text, len(names)) for text in texts), -1])[codes]
    return found


def _numbered(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A number for each distinct pair of values."""
    (_, first), (_, second) = (np.unique(values, return_inverse=True) for values in (one, other))
    _, pairs = np.unique(first * (second.max(initial=0) + 1) + second, return_inverse=True)
    return pairs


def _looked_up(calls: np.ndarray, seen: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """The shapes of each of `calls`, of which `seen` has some, each once; _UNSEEN for the others."""
    order = np.argsort(seen)
    at = np.minimum(np.searchsorted(seen[order], calls), len(seen) - 1)
    found: np.ndarray = np.where(seen[order][at] == calls, shapes[order][at], _UNSEEN)
    return found


def _filled(events: Table, rows: np.ndarray, found: np.ndarray, texts: list[str]) -> Table:
    """Return `events` with the shapes `found`, indices in `texts`, in `rows`."""
    codes, known = events.codes("shapes")
    number = {text: code for code, text in enumerate(dict.fromkeys((*known, *texts)))}
    codes = codes.copy()
    codes[rows] = np.array([number[text] for text in texts], np.int32)[found]
    column = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(list(number), pa.string()))
    field = EVENTS.field("shapes")
    return Table(events.arrow.set_column(events.arrow.schema.get_field_index("shapes"), field, column))
