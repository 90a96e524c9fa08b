"""The calls of one rank in the steady-state steps: nested calls on its CPU threads, and the GPU work they launched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.ops.answer import OpKind
from esprof.analyzers.ops.nesting import nearest, nested, with_inner
from esprof.core.types import Ns
from esprof.replay.building.lookup import numbered, pairs, position
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.schema import Table

_KINDS: dict[str, OpKind] = {
    "op": "op",
    "annotation": "annotation",
    "runtime": "runtime",
    "collective": "collective",
    "loader": "loader",
    "checkpoint": "checkpoint",
    "python": "module",
}
"""Kinds of events that are calls on a thread. Of `python` events only modules count as operations."""

_ON_GPU = ("kernel", "memcpy", "memset", "collective")


@dataclass(frozen=True)
class Key:
    """Identity of a row of the table. `shapes` is None if rows are not separated by shapes."""

    kind: OpKind
    name: str
    shapes: str | None


@dataclass(frozen=True)
class RankCalls:
    """The calls of one rank that overlap its steady-state steps, sorted by thread; arrays have one entry for each call."""

    row: np.ndarray
    """Row of the event table."""
    key: np.ndarray
    """Index into `keys`."""
    keys: tuple[Key, ...]
    enclosing: np.ndarray
    """Index of the enclosing call; -1 if there is none."""
    outermost: np.ndarray
    """bool: no call of the same key encloses it."""
    starts_inside: np.ndarray
    """bool: it starts in a steady-state step."""
    counts: np.ndarray
    """bool: the call starts inside and is not the only call within a call of its own key. torch also counts an operation
    that calls its own overload once."""
    own_ns: np.ndarray
    """Time in the steady-state steps in which no nested call is open."""
    total_ns: np.ndarray
    """Time in the steady-state steps."""
    adds_ns: np.ndarray
    """The portion of `total_ns` in which no earlier call of its key is open on the thread."""

    def of(self, wanted: Callable[[Key], bool]) -> np.ndarray:
        """Mask of the calls for whose key `wanted` is true."""
        mask: np.ndarray = np.array([wanted(key) for key in self.keys], bool)[self.key]
        return mask


@dataclass(frozen=True)
class LaunchedWork:
    """Kernels, copies and fills that a rank launched in its steady-state steps, or began there if their launch was not
    recorded; arrays have one entry for each."""

    row: np.ndarray
    """Row of the event table."""
    by: np.ndarray
    """Index of the launching call in `RankCalls`, the innermost one that is not a runtime call; -1 if there is none."""
    dur_ns: np.ndarray
    has_launch: np.ndarray
    """bool: its launch was recorded."""


class SteadyTime:
    """A clock that runs only during the steady-state steps of a rank."""

    def __init__(self, spans: Sequence[tuple[Ns, Ns]]) -> None:
        """`spans` are (start, end) of each step, ascending, on the rank's clock."""
        self._begin, end = np.array(spans, np.int64).T
        self._begin[1:] = np.maximum(self._begin[1:], end[:-1])  # Steps marked by hand may overlap by a moment.
        self._length = np.maximum(end - self._begin, 0)
        self._before = np.cumsum(self._length) - self._length
        self.total_ns = int(self._length.sum())

    def at(self, moment: np.ndarray) -> np.ndarray:
        """Time of this clock at each moment, ns."""
        step = np.searchsorted(self._begin, moment, side="right") - 1
        into = np.clip(moment - self._begin[step], 0, self._length[step])
        return np.where(step >= 0, self._before[step] + into, 0)

    def holds(self, moment: np.ndarray) -> np.ndarray:
        """Whether each moment (ns) lies in a steady-state step."""
        step = np.searchsorted(self._begin, moment, side="right") - 1
        inside: np.ndarray = (step >= 0) & (moment - self._begin[step] < self._length[step])
        return inside


def calls_of(events: Table, steady: SteadyTime, by_shape: bool) -> RankCalls:
    """The calls of a rank that overlap its steady-state steps."""
    row = _rows(events, steady)
    key, keys = _keys(events, row, by_shape)
    start = events.ints("start_ns")[row]
    begin, end = steady.at(start), steady.at(start + events.ints("dur_ns")[row])
    own, enclosing, outermost, adds = nested(events.ints("tid")[row], begin, end, key, len(keys))
    starts_inside = steady.holds(start)
    is_alone = np.bincount(enclosing[enclosing >= 0], minlength=len(row))[enclosing] == 1
    repeats = (enclosing >= 0) & is_alone & (key[enclosing] == key)
    return RankCalls(
        row, key, keys, enclosing, outermost, starts_inside, starts_inside & ~repeats, own, end - begin, adds
    )


def _rows(events: Table, steady: SteadyTime) -> np.ndarray:
    """Rows of the calls that overlap the steady-state steps, sorted by thread, each after its enclosing call."""
    is_module = events.matches("name", lambda name: name.startswith(MODULE_PREFIX))
    is_call = events.is_kind(*_KINDS) & (is_module | ~events.is_kind("python"))
    on_thread = (events.ints("tid") >= 0) & (events.ints("stream") < 0)
    row = np.flatnonzero(is_call & on_thread)
    start = events.ints("start_ns")[row]
    end = start + events.ints("dur_ns")[row]
    row = row[steady.holds(start) | (steady.at(end) > steady.at(start))]
    start, dur = events.ints("start_ns")[row], events.ints("dur_ns")[row]
    # Old traces in µs have operations and runtime calls with equal times: the runtime call is the inner one.
    return row[np.lexsort((events.is_kind("runtime")[row], -dur, start, events.ints("tid")[row]))]


def _keys(events: Table, row: np.ndarray, by_shape: bool) -> tuple[np.ndarray, tuple[Key, ...]]:
    (name, names), (kind, kinds) = events.codes("name"), events.codes("kind")
    shape, shapes = events.codes("shapes")
    shape_numbers = shape[row] if by_shape else np.full(len(row), -1, np.int32)
    # One number for each kind and shape, from 0; a missing text has code -1.
    rest = (kind[row].astype(np.int64) + 1) * (len(shapes) + 1) + shape_numbers + 1
    key, distinct = numbered(pairs(name[row] + 1, rest))
    texts, of_kind, of_shape = ["", *names], ["", *kinds], [None, *(known(text) for text in shapes)]
    found = []
    for number in distinct.tolist():
        text, (which, shaped) = texts[number >> 32], divmod(number & 0xFFFFFFFF, len(shapes) + 1)
        found.append(Key(_KINDS[of_kind[which]], text.removeprefix(MODULE_PREFIX), of_shape[shaped]))
    return key, tuple(found)


def known(shapes: str) -> str | None:
    """`shapes` of a trace; None if they were not recorded, or if the operation has no input."""
    return None if shapes in ("", "[]") else shapes


def launched_by(events: Table, calls: RankCalls, steady: SteadyTime, *, is_window: bool) -> LaunchedWork:
    """The GPU work that `calls` launched in steady-state steps, and the work without a recorded launch that began there.

    Work of a stream before its first recorded launch belongs to steps before the window. It counts if the steps are a
    window themselves (`is_window`).
    """
    gpu = np.flatnonzero((events.ints("stream") >= 0) & events.is_kind(*_ON_GPU))
    is_runtime = calls.of(lambda key: key.kind == "runtime")
    launches = np.flatnonzero(is_runtime & calls.starts_inside)
    correlation = events.ints("correlation")
    at = position(correlation[calls.row[launches]], correlation[gpu])
    of_any_call = position(correlation[events.is_kind("runtime")], correlation[gpu])
    unknown = (of_any_call < 0) & steady.holds(events.ints("start_ns")[gpu])
    if not is_window:
        unknown &= ~_before_launches(events.ints("stream")[gpu], of_any_call >= 0)
    unknown = gpu[unknown]
    gpu, launch = gpu[at >= 0], launches[at[at >= 0]]
    by = np.append(nearest(calls.enclosing, ~is_runtime)[launch], np.full(len(unknown), -1))
    row = np.append(gpu, unknown)
    order = np.argsort(row, kind="stable")
    has_launch = np.arange(len(row)) < len(gpu)
    return LaunchedWork(row[order], by[order], events.ints("dur_ns")[row[order]], has_launch[order])


def _before_launches(stream: np.ndarray, has_launch: np.ndarray) -> np.ndarray:
    """Mask of the work before the first with a launch on its stream; none on streams without launches. Sorted by start."""
    number, streams = numbered(stream)
    first = np.full(len(streams), 0)
    # With repeated indices numpy stores the last value; in reverse order that is the first.
    known = np.flatnonzero(has_launch)[::-1]
    first[number[known]] = known
    mask: np.ndarray = np.arange(len(stream)) < first[number]
    return mask


def total_gpu_ns(calls: RankCalls, launched: LaunchedWork) -> tuple[np.ndarray, np.ndarray]:
    """(time of the GPU work that each call launched itself, the same including its nested calls), ns."""
    own = np.zeros(len(calls.row), np.int64)
    mine = launched.by >= 0
    np.add.at(own, launched.by[mine], launched.dur_ns[mine])
    return own, with_inner(calls.enclosing, own)


def by_pair(key: np.ndarray, code: np.ndarray, texts: Sequence[str], values: np.ndarray) -> dict[tuple[int, str], int]:
    """Sums of `values` by key and text; `code` is the index of each text, -1 for none, which is left out."""
    known = code >= 0
    number, distinct = numbered(pairs(key[known], code[known]))
    # Sums of ns stay exact: a double holds integers up to 2^53, which are 104 days.
    sums = np.bincount(number, weights=values[known], minlength=len(distinct)).astype(np.int64)
    return {
        (pair >> 32, texts[pair & 0xFFFFFFFF]): total
        for pair, total in zip(distinct.tolist(), sums.tolist(), strict=True)
    }
