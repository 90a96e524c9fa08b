"""Python functions as torch.profiler records them with stacks: which function of the job ran when, on each thread."""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.core.types import Ns
from esprof.replay.cpu.frames import frame
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.schema import Table
from esprof.run.stacks import SourceLocation

MIN_SHARE_LEADING = 0.9
"""A function that is open for at least this share of the steps contains the training loop or leads to it."""

_WAITING = re.compile(
    r": _engine_run_backward$|run_backward of |torch/distributed/distributed_c10d\.py\(|_distributed_c10d"
    r"|(^|/)torch/profiler/|(^|/)torch/autograd/profiler\.py\("
)
"""Matches callees in which a thread waits for a backward pass or for other ranks, or the profiler works."""

_CALLS_MODULE = re.compile(r": _call_impl$|^nn\.Module: ")
_FORWARD = re.compile(r": forward$")
_INLINE = re.compile(r": <(list|set|dict)comp>$|: <genexpr>$")
"""Matches comprehensions, which count as the function that contains them."""

_NEVER_NS = np.iinfo(np.int64).max
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_COLLECT = "<built-in function collect>"
"""`gc.collect`, called by hand."""


class _Traits(NamedTuple):
    """What is known of each name, bool[names]."""

    job: np.ndarray
    torch: np.ndarray
    waits: np.ndarray
    calls_module: np.ndarray
    forward: np.ndarray
    inline: np.ndarray


class _Nest(NamedTuple):
    """What encloses each of the n rows of a thread, and which row is innermost when; to be filled."""

    own: np.ndarray
    """Row of the innermost function of the job, int64[n]; -1 if there is none."""
    callee: np.ndarray
    """Row of the function that it calls, int64[n]; -1 if there is none."""
    frame: np.ndarray
    """Row of the innermost Python function, int64[n]; -1 if there is none."""
    overhead: np.ndarray
    """bool[n]: PyTorch, or the forward of a module, lies between the loop of the job and this row."""
    waits: np.ndarray
    """bool[n]: the function of the job waits, or the profiler works."""
    model: np.ndarray
    """bool[n]: the forward of a module encloses the row, and no hook within it does."""
    begin: np.ndarray
    """Begin of each piece of time with one innermost row, ns, int64[2n]."""
    end: np.ndarray
    row: np.ndarray
    open: np.ndarray
    """The open rows, int64[n], outermost first."""


class _FrameCalls(NamedTuple):
    """The calls of Python functions, one entry for each, int64."""

    begin: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    name: np.ndarray


@dataclass(frozen=True)
class RecordedFrames:
    """The Python functions in the event table of one rank. Times are ns on its own clock.

    A piece is a time in which one Python function is the innermost event of its thread: no operation or call runs.
    """

    begin: np.ndarray
    """int64[pieces]."""
    end: np.ndarray
    thread: np.ndarray
    """Thread id of each piece, int64[pieces]; pieces of a thread are adjacent and sorted."""
    location: np.ndarray
    """Index in `locations`, int64[pieces]."""
    overhead: np.ndarray
    """Whether the time is that of PyTorch or of a module's forward, bool[pieces]: ordinary if short."""
    locations: tuple[SourceLocation, ...]
    """The innermost function of the job, and the function that it calls."""
    line_of: np.ndarray
    """Index in `texts` of the innermost function of the job around each row of the event table, int64[rows]; -1 for none."""
    texts: list[str]
    _called: "_FrameCalls"

    def __len__(self) -> int:
        return len(self.begin)

    def line(self, row: int) -> str | None:
        """The innermost function of the job that encloses this row of the event table; None if there is none."""
        code = int(self.line_of[row])
        return self.texts[code] if code >= 0 else None

    def within(self, thread: int, spans_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Overlaps of the pieces of a thread with `spans_ns`, int64[n, 2], sorted and disjoint.

        Returns (number of the span, number of the piece, length in ns), one entry for each overlap.
        """
        mine = np.flatnonzero(self.thread == thread)
        edges = np.unique(np.concatenate([spans_ns.ravel(), self.begin[mine], self.end[mine]]))
        if not len(mine) or not len(spans_ns):
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        span = np.searchsorted(spans_ns[:, 0], edges[:-1], side="right") - 1
        piece = np.searchsorted(self.begin[mine], edges[:-1], side="right") - 1
        inside = (span >= 0) & (piece >= 0)
        inside &= (edges[:-1] < spans_ns[span, 1]) & (edges[:-1] < self.end[mine][piece])
        return span[inside], mine[piece[inside]], np.diff(edges)[inside]

    def leading(self, thread: int, begin: Ns, finish: Ns) -> set[str]:
        """The functions of the job, as `file: function`, that a thread runs for nearly all the time from `begin` to
        `finish`."""
        calls = self._called
        inside = np.maximum(np.minimum(calls.end, finish) - np.maximum(calls.begin, begin), 0)
        took = np.bincount(calls.name, np.where(calls.thread == thread, inside, 0), len(self.texts))
        of_function: dict[str, float] = defaultdict(float)
        for code in np.flatnonzero(took).tolist():
            if (called := frame(self.texts[code])).origin == "job":
                of_function[f"{called.file}: {called.function}"] += float(took[code])
        return {function for function, ns in of_function.items() if ns >= MIN_SHARE_LEADING * (finish - begin)}


_known: WeakKeyDictionary[Table, RecordedFrames] = WeakKeyDictionary()


def recorded_frames(events: Table) -> RecordedFrames:
    """The Python functions of an event table; empty if the trace was recorded without stacks. Each table is read once."""
    if events not in _known:
        _known[events] = _read(events)
    return _known[events]


def _read(events: Table) -> RecordedFrames:
    name, texts = events.codes("name")
    tid, is_python = events.ints("tid"), events.is_kind("python")
    begin_ns = events.ints("start_ns")[is_python]
    called = _FrameCalls(begin_ns, begin_ns + events.ints("dur_ns")[is_python], tid[is_python], name[is_python])
    line_of = np.full(len(events), -1)
    chunks, keys = [], []
    traits = _traits(texts, np.unique(called.name))
    for thread in np.unique(tid[is_python]).tolist():
        rows = np.flatnonzero((tid == thread) & (is_python | events.is_kind("op", "runtime", "loader")))
        nest, count = _nested(events, rows, is_python[rows], name[rows], traits)
        line_of[rows] = np.where(nest.own >= 0, name[rows][nest.own], -1)
        row = nest.row[:count]
        kept = np.flatnonzero(is_python[rows][row] & (nest.own[row] >= 0) & ~nest.waits[row])
        row = row[kept]
        callee = np.where(nest.callee[row] >= 0, name[rows][nest.callee[row]], len(texts))
        keys.append(name[rows][nest.own[row]].astype(np.int64) * (len(texts) + 1) + callee)
        chunks.append((nest.begin[kept], nest.end[kept], np.full(len(kept), thread), nest.overhead[row]))
    nothing = (np.zeros(0, np.int64),) * 3 + (np.zeros(0, bool),)
    begin, end, threads, overhead = (np.concatenate(columns) for columns in zip(nothing, *chunks, strict=True))
    known, location = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
    locations = tuple(_location(texts, *divmod(key, len(texts) + 1)) for key in known.tolist())
    return RecordedFrames(begin, end, threads, location, overhead, locations, line_of, texts, called)


def _location(texts: list[str], own: int, callee: int) -> SourceLocation:
    if callee == len(texts):
        return SourceLocation(texts[own], None)
    # A built-in method is named with the address of its object.
    call = _ADDRESS.sub("", texts[callee])
    return SourceLocation(texts[own], GARBAGE_COLLECTION if call == _COLLECT else call)


def _traits(texts: list[str], used: np.ndarray) -> _Traits:
    """Traits of the names whose indices are `used`; False for other names."""
    traits = _Traits(*(np.zeros(len(texts) + 1, bool) for _ in _Traits._fields))
    for code in used.tolist():
        text, origin = texts[code], frame(texts[code]).origin
        traits.job[code], traits.torch[code] = origin == "job", origin == "torch"
        traits.waits[code] = _WAITING.search(text) is not None
        traits.calls_module[code] = _CALLS_MODULE.search(text) is not None
        traits.forward[code] = _FORWARD.search(text) is not None
        traits.inline[code] = origin == "job" and _INLINE.search(text) is not None
    return traits


def _nested(
    events: Table, rows: np.ndarray, is_python: np.ndarray, name: np.ndarray, traits: _Traits
) -> tuple[_Nest, int]:
    """(what encloses each of `rows`, the rows of one thread; number of pieces)."""
    count = len(rows)
    start = events.ints("start_ns")[rows]
    nest = _Nest(
        **{field: np.full(count, -1) for field in ("own", "callee", "frame")},
        **{field: np.zeros(count, np.bool_) for field in ("overhead", "waits", "model")},
        **{field: np.zeros(2 * count, np.int64) for field in ("begin", "end", "row")},
        open=np.zeros(count, np.int64),
    )
    return nest, _nest(start, start + events.ints("dur_ns")[rows], is_python, name.astype(np.int64), traits, nest)


@compiled_in_place
def _nest(
    start: np.ndarray, end: np.ndarray, is_python: np.ndarray, name: np.ndarray, traits: _Traits, nest: _Nest
) -> int:
    """Fill `nest` from rows that are sorted by start, the longer first, and return the number of pieces.

    A row that outlasts the row that encloses it, by rounding, ends with it.
    """
    count = depth = 0
    now = 0
    for row in range(len(start) + 1):
        moment = start[row] if row < len(start) else _NEVER_NS
        while depth and end[nest.open[depth - 1]] <= moment:
            last = nest.open[depth - 1]
            if now < end[last]:
                nest.begin[count], nest.end[count], nest.row[count] = now, end[last], last
                now, count = end[last], count + 1
            depth -= 1
        if row == len(start):
            break
        if depth:
            outer = nest.open[depth - 1]
            if now < moment:
                nest.begin[count], nest.end[count], nest.row[count] = now, moment, outer
                count += 1
            end[row] = min(end[row], end[outer])
            _inherit(row, outer, nest)
        now = max(now, moment)
        if is_python[row]:
            _enter(row, name, traits, nest)
        nest.open[depth] = row
        depth += 1
    return count


@compiled_in_place
def _inherit(row: int, outer: int, nest: _Nest) -> None:
    """What encloses `outer` encloses `row`, too."""
    nest.own[row], nest.callee[row], nest.frame[row] = nest.own[outer], nest.callee[outer], nest.frame[outer]
    nest.overhead[row], nest.waits[row], nest.model[row] = nest.overhead[outer], nest.waits[outer], nest.model[outer]


@compiled_in_place
def _enter(row: int, name: np.ndarray, traits: _Traits, nest: _Nest) -> None:
    """`row` is a Python function: it belongs to the job, or is called by a function of the job."""
    code, caller = name[row], nest.frame[row]
    if traits.inline[code] and nest.own[row] >= 0:
        nest.frame[row] = row
        return
    if traits.job[code]:
        # PyTorch calls hooks as it calls `forward`: what a hook does is not the model's.
        if caller >= 0 and traits.calls_module[name[caller]]:
            nest.model[row] = traits.forward[code]
        nest.own[row], nest.callee[row] = row, -1
        nest.overhead[row], nest.waits[row] = nest.model[row], False
    else:
        if nest.callee[row] < 0:
            nest.callee[row] = row
        nest.overhead[row] |= traits.torch[code]
        nest.waits[row] |= traits.waits[code]
    nest.frame[row] = row
