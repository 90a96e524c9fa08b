"""Arrivals of ranks at collectives, and the time that calls wait for ranks which have not arrived."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.types import Rank
from esprof.replay import rules
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import covered_ns, union_ns


@dataclass(frozen=True)
class Arrivals:
    """A arrivals of ranks at C matched collectives, sorted by collective and rank."""

    ranks: tuple[Rank, ...]
    collective: np.ndarray
    """Number of each collective, int64[C]."""
    step: np.ndarray
    """Step that launched each collective, int64[C]."""
    row: np.ndarray
    """Position of the collective of each arrival in `collective`, int64[A]; none lacks an arrival."""
    column: np.ndarray
    """Position of the rank of each arrival in `ranks`, int64[A]."""
    arrived_ns: np.ndarray
    """Recorded time of each arrival, ns since the graph's `t0_ns`, int64[A]."""

    @classmethod
    def of(
        cls, ranks: tuple[Rank, ...], number: np.ndarray, column: np.ndarray, step: np.ndarray, arrived_ns: np.ndarray
    ) -> "Arrivals":
        """Of arrivals in any order: number of the collective, column of the rank, step that launched it on this rank, and
        time, int[…]. Of several of a rank at one collective the last counts."""
        collective, row = np.unique(number, return_inverse=True)
        of_step = np.zeros(len(collective), np.int64)
        of_step[row] = step
        # `unique` finds the first of equal pairs, here of the reversed ones.
        _, at = np.unique((row * len(ranks) + column)[::-1], return_index=True)
        at = len(row) - 1 - at
        return cls(ranks, collective.astype(np.int64), of_step, row[at], column[at], arrived_ns[at].astype(np.int64))

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def begin(self) -> np.ndarray:
        """Where the arrivals at each collective begin, and where the last ones end, int64[C + 1]."""
        begin: np.ndarray = np.searchsorted(self.row, np.arange(len(self) + 1))
        return begin

    @cached_property
    def by_time(self) -> np.ndarray:
        """The arrivals, sorted by collective and time, int64[A]."""
        # Of ranks that arrive together, the first is the last: any one of them would do.
        order: np.ndarray = np.lexsort((-self.column, self.arrived_ns, self.row))
        return order

    def first_ns(self) -> np.ndarray:
        """First arrival at each collective, ns, int64[C]."""
        first: np.ndarray = self.arrived_ns[self.by_time[self.begin[:-1]]]
        return first

    def median_ns(self) -> np.ndarray:
        """Median arrival at each collective, ns, float64[C]."""
        count = np.diff(self.begin)
        low, high = (self.begin[:-1] + (count - 1) // 2, self.begin[:-1] + count // 2)
        median: np.ndarray = (self.arrived_ns[self.by_time[low]] + self.arrived_ns[self.by_time[high]]) / 2
        return median

    def last(self) -> np.ndarray:
        """Column of the rank that arrived last at each collective, int64[C]."""
        column: np.ndarray = self.column[self.by_time[self.begin[1:] - 1]]
        return column

    def lateness(self) -> np.ndarray:
        """(second last arrival, last arrival) of each collective, ns, int64[C, 2]; equal where only one rank arrived."""
        # With one arrival (the other ranks launched it in another step) nobody is late.
        second = np.maximum(self.begin[1:] - 2, self.begin[:-1])
        spans: np.ndarray = self.arrived_ns[self.by_time[np.stack([second, self.begin[1:] - 1], axis=1)]]
        return spans

    def late_ns(self) -> np.ndarray:
        """Time that all other ranks waited for each rank alone, ns, int64[ranks].

        Overlapping delays count once, however many collectives were outstanding.
        """
        spans, last = self.lateness(), self.last()
        by_rank = np.argsort(last, kind="stable")
        begin = np.searchsorted(last[by_rank], np.arange(1, len(self.ranks)))
        return np.array([union_ns(*spans[rows].T) for rows in np.split(by_rank, begin)], np.int64)

    def table_ns(self, rows: Sequence[int]) -> np.ndarray:
        """Arrival of each rank at these collectives, ns, float64[rows, ranks]; NaN if the rank is not a member."""
        table = np.full((len(rows), len(self.ranks)), np.nan)
        for line, row in zip(table, rows, strict=True):
            mine = slice(self.begin[row], self.begin[row + 1])
            line[self.column[mine]] = self.arrived_ns[mine]
        return table


def arrivals(dfg: Dfg, steps: tuple[int, ...]) -> Arrivals:
    """Arrivals at the collectives that were launched in `steps`."""
    nodes = np.flatnonzero((dfg.collective >= 0) & dfg.of(Cls.WAIT) & (dfg.rank >= 0) & np.isin(dfg.step, steps))
    column = np.searchsorted(dfg.marks.ranks, dfg.rank[nodes])
    return Arrivals.of(dfg.marks.ranks, dfg.collective[nodes], column, dfg.step[nodes], dfg.recorded_ns[nodes])


def held_ns(dfg: Dfg, by: Sequence[Rank]) -> np.ndarray:
    """Time that allocator and launch calls wait for one of the ranks `by`, ns, int64[N]; 0 for other nodes.

    An allocator call waits until its device has completed pending work, which may be a collective that waits for other
    ranks: the overlap of a long call with such a wait is not the rank's own work. Of a long launch, all time beyond
    `MAX_BLOCKING_OWN` counts as waiting: it waits for room in the queue after work that may have been launched before the
    first step (docs/explanation/replay.md §4).
    """
    seen = arrivals(dfg, dfg.marks.steps)
    is_long = dfg.dur_ns > rules.MIN_WAITING_CALL
    calls = np.flatnonzero(dfg.of(Cls.ALLOCATOR) & is_long)
    found = np.where(dfg.of(Cls.LAUNCH) & is_long, dfg.dur_ns - rules.MAX_BLOCKING_OWN, 0)
    if not len(seen) or not len(calls):
        return found
    until = seen.lateness()[:, 1][seen.row]
    waits = np.isin(seen.ranks, by)[seen.last()][seen.row] & (seen.arrived_ns < until)
    # Each rank gets its own section of one time axis, so that calls and waits of different ranks never overlap.
    span = int((dfg.recorded_ns + dfg.dur_ns).max()) + 1
    section = seen.column[waits] * span
    begin, end = section + seen.arrived_ns[waits], section + until[waits]
    start = np.searchsorted(seen.ranks, dfg.rank[calls]) * span + dfg.recorded_ns[calls]
    within = covered_ns(begin, end, start + dfg.dur_ns[calls]) - covered_ns(begin, end, start)
    found[calls] = np.minimum(within, dfg.dur_ns[calls] - rules.MAX_BLOCKING_OWN)
    return found


def may_be_held(dfg: Dfg) -> np.ndarray:
    """Mask of the nodes that `arrivals` and `held_ns` look at, bool[N]: what they say of a graph of these alone holds."""
    mask: np.ndarray = (dfg.collective >= 0) | (
        dfg.of(Cls.ALLOCATOR, Cls.LAUNCH) & (dfg.dur_ns > rules.MIN_WAITING_CALL)
    )
    return mask
