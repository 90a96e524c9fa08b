"""Add group, number and sizes to gloo collectives of a trace, from PyTorch's own Flight Recorder.

A trace without shapes only has the names of gloo collectives. The Flight Recorder has group, number and sizes of each call,
and its time, which lies within a `c10d::` operation of the trace. A process group passes its calls to its threads first in,
first out, which allows matching. A wrong size is worse than none, so values without a unique match stay null.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from esprof.core.disk import read_regular
from esprof.core.errors import InputError, unreadable
from esprof.core.types import Bytes, Ns, Time
from esprof.run.collective_names import ITEM_BYTES
from esprof.run.groups import Group
from esprof.run.reading import memory_limit
from esprof.run.schema import EVENTS, Table

ItemT = TypeVar("ItemT")

_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]

_CALL_COLUMNS = ("group", "coll_seq", "in_bytes", "out_bytes", "dtype")
"""Columns of the event table that a call fills."""


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that the process called."""

    process_group: tuple[str, str]
    """Name of the group in this process, and its description."""
    collective_seq_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    profiling_name: str
    time_created_ns: Time
    is_p2p: bool = False
    input_sizes: list[list[_Size]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[_Size]] = []
    output_dtypes: list[str] = []

    def values(self, groups: Mapping[str, Group]) -> dict[str, Any]:
        """Return the values of the event's columns."""
        group = groups.get(self.process_group[0])
        dtypes = {dtype.lower() for dtype in (*self.input_dtypes, *self.output_dtypes)}
        return {
            "group": group.name if group else None,
            "coll_seq": self.collective_seq_id,
            "in_bytes": _bytes(self.input_sizes, self.input_dtypes),
            "out_bytes": _bytes(self.output_sizes, self.output_dtypes),
            "dtype": dtypes.pop() if len(dtypes) == 1 else None,
        }


class _Dump(msgspec.Struct, frozen=True):
    entries: list[RecordedCall] = []


_DUMP = msgspec.json.Decoder(_Dump)  # Created once, as several threads use it: docs/decisions/0002-libraries.md.


def read_calls(path: Path) -> list[RecordedCall]:
    """Return the calls in a dump of the Flight Recorder, oldest first. Raises InputError if it cannot be read."""
    try:
        found = _DUMP.decode(read_regular(path, memory_limit())).entries
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is not a dump of PyTorch's Flight Recorder: {error}", path=path) from error
    return sorted(found, key=lambda call: call.time_created_ns)


def with_calls(events: Table, calls: Sequence[RecordedCall], groups: Mapping[str, Group]) -> Table:
    """Return the `events` of one window, with group, number, sizes and type of its gloo collectives.

    `groups` has the process groups by their names in this process.
    """
    collectives = _gloo_collectives(events)
    names = sorted({collective.name for collective in collectives})
    made = [call for call in _made_in_window(events, calls) if call.profiling_name in names and not call.is_p2p]
    described: dict[int, dict[str, Any]] = {}
    for group, threads in _threads_of_groups(collectives, made).items():
        for name in names:
            queue = [call for call in made if (call.process_group[0], call.profiling_name) == (group, name)]
            mine = [one for one in collectives if one.tid in threads and one.name == name]
            described |= _paired(mine, queue, groups)
    return _filled(events, described) if described else events


class _GlooCollective(msgspec.Struct, frozen=True, gc=False):
    """A collective on a gloo thread."""

    row: int
    name: str
    tid: int
    start_ns: Ns
    free_ns: Ns
    """End of the thread's preceding collective; 0 without one."""


def _gloo_collectives(events: Table) -> list[_GlooCollective]:
    """Return the gloo collectives of `events`, by start."""
    rows = np.flatnonzero(events.is_kind("collective") & (events.ints("stream") < 0))
    codes, names = events.codes("name")
    start, end, tid = (column[rows].tolist() for column in (events.ints("start_ns"), _ends(events), events.ints("tid")))
    found, free = [], dict[int, Ns]()
    for i, (row, code) in enumerate(zip(rows.tolist(), codes[rows].tolist(), strict=True)):
        if names[code].startswith("gloo:"):
            found.append(_GlooCollective(row, names[code], tid[i], start[i], free.get(tid[i], 0)))
            free[tid[i]] = end[i]
    return found


def _ends(events: Table) -> np.ndarray:
    ends: np.ndarray = events.ints("start_ns") + events.ints("dur_ns")
    return ends


def _made_in_window(events: Table, calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Return the calls within a `c10d::` operation of `events`: only their collectives are in the trace."""
    is_call = events.matches("name", lambda name: name.startswith("c10d::"))
    made = np.array([call.time_created_ns for call in calls], np.int64)
    inside = np.zeros(len(calls), bool)
    tids = events.ints("tid")
    for tid in np.unique(tids[is_call]).tolist():
        rows = np.flatnonzero(is_call & (tids == tid))
        starts = events.ints("start_ns")[rows]
        # The last operation that started before each call; the call belongs to it unless it had ended.
        at = np.searchsorted(starts, made, side="right") - 1
        inside |= (at >= 0) & (made <= _ends(events)[rows][at])
    return [call for call, is_inside in zip(calls, inside.tolist(), strict=True) if is_inside]


def _threads_of_groups(collectives: Sequence[_GlooCollective], calls: Sequence[RecordedCall]) -> dict[str, set[int]]:
    """Return the threads of each process group: those whose collectives mostly follow one of its calls."""
    made: dict[tuple[str, str], np.ndarray] = {}
    for key, mine in _grouped(calls, lambda call: (call.process_group[0], call.profiling_name)).items():
        made[key] = np.array([call.time_created_ns for call in mine], np.int64)
    found: dict[str, set[int]] = {group: set() for group, _ in sorted(made)}
    for tid, started in _grouped(collectives, lambda one: one.tid).items():
        votes = Counter(group for one in started if (group := _nearest(one, list(found), made)) is not None)
        if votes:
            found[votes.most_common(1)[0][0]].add(tid)
    return found


def _nearest(
    collective: _GlooCollective, groups: Sequence[str], made: Mapping[tuple[str, str], np.ndarray]
) -> str | None:
    """Return the group with the last call of the same name before the collective; None if there is none."""
    last: dict[str, int] = {}
    for group in groups:
        times = made.get((group, collective.name), np.zeros(0, np.int64))
        at = int(np.searchsorted(times, collective.start_ns, side="right")) - 1
        if at >= 0:
            last[group] = int(times[at])
    return max(last, key=last.__getitem__) if last else None


def _paired(
    collectives: Sequence[_GlooCollective], calls: Sequence[RecordedCall], groups: Mapping[str, Group]
) -> dict[int, dict[str, Any]]:
    """Return the values for each collective's row, from the collectives and calls of one group and name, both by time.

    The Flight Recorder may lack the first calls, and the window the last collectives. The largest offset is used at which
    no collective starts before its call. If an unmatched call precedes the start of the last collective, one is missing in
    between, and nothing is filled.
    """
    offset = len(calls) - len(collectives)
    while offset > -len(collectives) and not _fits(collectives, calls, offset):
        offset -= 1
    pairs = [(one, calls[i + offset]) for i, one in enumerate(collectives) if i + offset >= 0]
    left_over = calls[len(collectives) + offset :]
    if not pairs or any(call.time_created_ns < collectives[-1].start_ns for call in left_over):
        return {}
    described: dict[int, dict[str, Any]] = {}
    for swappable in _runs(pairs):
        values = [call.values(groups) for _, call in swappable]
        agreed = {name for name in _CALL_COLUMNS if len({value[name] for value in values}) == 1}
        # Only the order determines the number. A number off by one is that of a concurrent call; without a number, the calls
        # of the other ranks would have no match.
        agreed.add("coll_seq")
        for (collective, _), value in zip(swappable, values, strict=True):
            described[collective.row] = {name: value[name] for name in agreed}
    return described


def _fits(collectives: Sequence[_GlooCollective], calls: Sequence[RecordedCall], offset: int) -> bool:
    return all(
        calls[i + offset].time_created_ns <= one.start_ns for i, one in enumerate(collectives) if i + offset >= 0
    )


def _runs(
    pairs: Sequence[tuple[_GlooCollective, RecordedCall]],
) -> Iterator[Sequence[tuple[_GlooCollective, RecordedCall]]]:
    """Yield runs of pairs whose calls may have started in another order than their collectives.

    Two idle threads may take two calls concurrently, and the second one may record its start first.
    """
    first = 0
    for i in range(1, len(pairs) + 1):
        if i < len(pairs):
            (before, _), (after, call) = pairs[i - 1], pairs[i]
            if call.time_created_ns < before.start_ns and after.free_ns < before.start_ns and after.tid != before.tid:
                continue
        yield pairs[first:i]
        first = i


def _filled(events: Table, described: Mapping[int, Mapping[str, Any]]) -> Table:
    """Return `events` with the values of `described`, by row and column. All other cells are unchanged."""
    columns = events.arrow
    for name in _CALL_COLUMNS:
        new = {row: value[name] for row, value in described.items() if value.get(name) is not None}
        rows, field = np.array(list(new), np.int64), EVENTS.field(name)
        if pa.types.is_dictionary(field.type):
            codes, texts = events.codes(name)
            # Existing texts retain their codes; new ones follow.
            known = {text: code for code, text in enumerate(dict.fromkeys((*texts, *new.values())))}
            codes[rows] = [known[text] for text in new.values()]
            filled = pa.DictionaryArray.from_arrays(
                pa.array(codes, pa.int32(), mask=codes < 0), pa.array(list(known), pa.string())
            )
        else:
            values = events.ints(name).copy()
            values[rows] = list(new.values())
            filled = pa.array(values, field.type, mask=values < 0)
        columns = columns.set_column(columns.schema.get_field_index(name), field, filled)
    return Table(columns)


def _bytes(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> Bytes | None:
    items = [ITEM_BYTES.get(dtype.lower()) for dtype in dtypes]
    if not sizes or len(items) != len(sizes) or None in items:
        return None
    total = sum(prod(size) * item for size, item in zip(sizes, items, strict=True) if item)
    return total if total < 1 << 62 else None


def _grouped(items: Iterable[ItemT], key: Callable[[ItemT], Any]) -> dict[Any, list[ItemT]]:
    return {value: list(mine) for value, mine in groupby(sorted(items, key=key), key=key)}
