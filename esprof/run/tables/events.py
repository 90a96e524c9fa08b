"""The events of one rank of a table of operations."""

from collections.abc import Mapping
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from esprof.core.types import Ns, Rank
from esprof.run.collective_names import collective_word
from esprof.run.groups import Group
from esprof.run.schema import EVENTS, Table, table
from esprof.run.tables.steps import spans_of

_FIRST_COLLECTIVE_THREAD = 1 << 32
"""Id of the first thread of collectives, above all streams."""


def events_of(rows: pa.Table, rank: Rank, groups: Mapping[str, Group]) -> Table:
    """Return the events of one rank.

    A table has the times of operations, but not their launches. Its lanes therefore become threads, and a collective
    becomes two events, as PyTorch records gloo: a call at its start and the communication on a separate thread.
    """
    is_collective = pc.is_valid(rows["group"])
    work, collectives = rows.filter(pc.invert(is_collective)), rows.filter(is_collective)
    main = pc.min(work["stream"].fill_null(0)).as_py() or 0
    tables = [
        _launch_calls(collectives, main),
        _steps(rows),
        _operations(work, main),
        _communication(collectives, rank, groups),
    ]
    events = Table(pa.concat_tables([one.arrow for one in tables]).unify_dictionaries())
    # An operation that starts together with a collective did not launch it: the call comes first.
    others = np.arange(len(events)) >= len(collectives)
    return Table(events.arrow.take(np.lexsort((-events.ints("dur_ns"), others, events.ints("start_ns")))))


def _operations(rows: pa.Table, main: int) -> Table:
    lane = rows["stream"].fill_null(0).to_numpy()
    roles = ["main" if one == main else "other" for one in lane.tolist()]
    return table(_timed(rows, "op") | {"name": rows["op"].to_pylist(), "tid": lane, "thread_role": roles}, EVENTS)


def _launch_calls(rows: pa.Table, main: int) -> Table:
    calls = _timed(rows, "op") | {"dur_ns": np.zeros(len(rows), np.int64)}
    names = [f"c10d::{name}" for name in rows["op"].to_pylist()]
    return table(calls | {"name": names, "tid": [main] * len(rows), "thread_role": ["main"] * len(rows)}, EVENTS)


def _communication(rows: pa.Table, rank: Rank, groups: Mapping[str, Group]) -> Table:
    names = rows["op"].to_pylist()
    words = [collective_word(name) or name for name in names]
    between = [groups[text] for text in rows["group"].to_pylist()]
    others = [[one for one in group.ranks if one != rank] for group in between]
    is_p2p = [word in ("send", "recv") and len(other) == 1 for word, other in zip(words, others, strict=True)]
    columns = {
        "name": names,
        "tid": _lanes(rows),
        "group": [group.name for group in between],
        "collective": words,
        "is_p2p": is_p2p,
        "peer": [other[0] if p2p else None for other, p2p in zip(others, is_p2p, strict=True)],
        "in_bytes": rows["bytes"].to_pylist(),
    }
    return table(_timed(rows, "collective") | columns, EVENTS)


def _lanes(rows: pa.Table) -> list[int]:
    """Return the thread of each collective. Collectives with the same operation, group and stream share a thread unless they
    overlap."""
    free: dict[tuple[object, ...], list[tuple[Ns, int]]] = {}
    """Time from which each thread of a kind is free, as a heap."""
    lanes, count = np.zeros(len(rows), np.int64), 0
    kinds = list(zip(*(rows[name].to_pylist() for name in ("op", "group", "stream")), strict=True))
    start, end = (rows[name].to_numpy() for name in ("start", "end"))
    for row in np.lexsort((end, start)).tolist():
        threads = free.setdefault(kinds[row], [])
        if threads and threads[0][0] <= start[row]:
            _, lane = heappop(threads)
        else:
            lane, count = _FIRST_COLLECTIVE_THREAD + count, count + 1
        heappush(threads, (int(end[row]), lane))
        lanes[row] = lane
    return lanes.tolist()


def _timed(rows: pa.Table, kind: str) -> dict[str, object]:
    start, end = (rows[name].to_numpy() for name in ("start", "end"))
    return {
        "kind": [kind] * len(rows),
        "start_ns": start,
        "dur_ns": end - start,
        "pid": [0] * len(rows),
        "step": rows["step"].to_pylist(),
    }


def _steps(rows: pa.Table) -> Table:
    """Return one row per step, from its first operation to that of the next step; the last step ends with its operations."""
    number, start, last = spans_of(rows)
    end = np.append(start[1:], last[-1:])
    steps = number.tolist()
    columns = {"name": [f"ProfilerStep#{step}" for step in steps], "kind": ["step"] * len(steps), "step": steps}
    threads = {"pid": [0] * len(steps), "tid": [0] * len(steps)}
    return table(columns | threads | {"start_ns": start, "dur_ns": end - start}, EVENTS)
