"""Operations inside others: what part of a top-level operation, which is all that the graph holds, is spent in them."""

import re

import numpy as np

from esprof.core.compiled import compiled
from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.whatif.graph.thread_ranges import launches_of
from esprof.run.run import Run
from esprof.run.schema import Table


def share_in(run: Run, dfg: Dfg, name: re.Pattern[str]) -> np.ndarray:
    """For each node of `dfg` that is (a part of) an operation on a CPU thread, the share of that operation's time that is
    spent in operations whose name the pattern finds, but not in those that these call; 0 for all others. float64[N]."""
    share = np.zeros(dfg.nodes)
    on_threads = dfg.on(LaneKind.CPU) & (dfg.event >= 0)
    for rank in dfg.marks.ranks:
        nodes = np.flatnonzero(on_threads & (dfg.rank == rank))
        share[nodes] = _share_of_rows(run.events(rank), name)[dfg.event[nodes]]
    return share


def _share_of_rows(table: Table, name: re.Pattern[str]) -> np.ndarray:
    """The share of each row, float64[rows]; 0 for rows that are no operation."""
    rows, tid, start, end = nested_rows(table, table.is_kind("op"))
    share = np.zeros(len(table))
    share[rows] = _within(tid, start, end, table.matches("name", name.search)[rows]) / np.maximum(end - start, 1)
    return share


def nested_rows(events: Table, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(rows, thread, start, end) of the `wanted` events (bool), int64: thread by thread, by start, and of two that start
    together the longer one first, which is around the other."""
    rows = np.flatnonzero(wanted)
    tid, start = events.ints("tid")[rows], events.ints("start_ns")[rows]
    end = start + events.ints("dur_ns")[rows]
    order = np.lexsort((-end, start, tid))
    return rows[order], tid[order], start[order], end[order]


def launching_operations(events: Table, kernels: np.ndarray) -> np.ndarray:
    """Row of the innermost operation around the launch of each kernel (row), int64[kernels]; -1 where that is unknown."""
    launch = launches_of(events, kernels)
    is_launch = np.zeros(len(events), bool)
    is_launch[launch[launch >= 0]] = True
    rows, tid, start, end = nested_rows(events, events.is_kind("op") | is_launch)
    around = innermost_around(tid, start, end, ~is_launch[rows])
    operation = np.full(len(events), -1)
    operation[rows] = np.where(around >= 0, rows[around], -1)
    return np.where(launch >= 0, operation[launch], -1)


@compiled
def _within(tid: np.ndarray, start: np.ndarray, end: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each operation the time that it and those inside it spend in wanted ones themselves, ns. Operations nest."""
    inside = np.zeros(len(tid))
    enclosing, depth = np.empty(len(tid), np.int64), 0
    for n in range(len(tid)):
        while depth and (tid[enclosing[depth - 1]] != tid[n] or end[enclosing[depth - 1]] <= start[n]):
            depth -= 1
        took = end[n] - start[n]
        # What an operation takes is not spent by the one that calls it.
        own = took if wanted[n] else 0
        taken = took if depth and wanted[enclosing[depth - 1]] else 0
        for level in range(depth):
            inside[enclosing[level]] += own - taken
        inside[n] += own
        enclosing[depth] = n
        depth += 1
    return inside


@compiled
def innermost_around(tid: np.ndarray, start: np.ndarray, end: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Index of the innermost wanted operation around each one, int64[n]; -1 for none. Operations nest, thread by thread, and
    of two that start together the longer one is first."""
    found = np.full(len(tid), -1, np.int64)
    enclosing, depth = np.empty(len(tid), np.int64), 0
    for n in range(len(tid)):
        while depth and (tid[enclosing[depth - 1]] != tid[n] or end[enclosing[depth - 1]] <= start[n]):
            depth -= 1
        if depth:
            found[n] = enclosing[depth - 1]
        if wanted[n]:
            enclosing[depth] = n
            depth += 1
    return found
