"""Who keeps whom waiting: arrivals at collectives, and the waiting that the last rank causes."""

from dataclasses import dataclass

import numpy as np

from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import union_ns
from esprof.types import Rank

CLEARLY = 1.4
"""A rank is slow when it bears more than this many times an even share of the blame: of two ranks, seven tenths."""

CHANCE = 0.05
"""Probability below which being late in that many steps does not count as chance."""

FEW_STEPS = 5
"""Steps from which on chance can be ruled out; with fewer, the share of the blame alone decides."""


@dataclass(frozen=True)
class Arrivals:
    """When each rank came to each of C matched collectives."""

    ranks: tuple[Rank, ...]
    step: np.ndarray
    """Step that issued each collective, int64[C]."""
    arrived_ns: np.ndarray
    """Recorded arrival of each rank, ns since the graph's `t0_ns`, float64[C, ranks]; NaN where a rank is no member."""

    def __len__(self) -> int:
        return len(self.step)

    def last(self) -> np.ndarray:
        """Column of the rank that came last to each collective, shape (C,)."""
        column: np.ndarray = np.argmax(np.nan_to_num(self.arrived_ns, nan=-np.inf), axis=1)
        return column

    def lateness(self) -> np.ndarray:
        """(second last arrival, last arrival) of each collective, ns, shape (C, 2); equal where only one rank arrived.

        Counting last places is weaker: a rank may be last often, and by next to nothing (docs/replay.md §4).
        """
        # Ranks that did not arrive sort first.
        order = np.sort(np.nan_to_num(self.arrived_ns, nan=-np.inf), axis=1)
        # One arrival alone (the others launched it in another step) has nobody to be late for.
        return np.stack([np.where(np.isfinite(order[:, -2]), order[:, -2], order[:, -1]), order[:, -1]], axis=1)

    def late_ns(self, steps: tuple[int, ...]) -> np.ndarray:
        """How long all others waited for each rank alone in each step, ns, int64[steps, ranks].

        One delay counts once, however many collectives were outstanding.
        """
        spans, last = self.lateness(), self.last()
        late = np.zeros((len(steps), len(self.ranks)), np.int64)
        for row, step in enumerate(steps):
            for column in range(len(self.ranks)):
                late[row, column] = union_ns(*spans[(self.step == step) & (last == column)].T)
        return late


def arrivals(dfg: Dfg, steps: tuple[int, ...]) -> Arrivals:
    """Arrivals at the collectives that were issued in `steps`."""
    nodes = np.flatnonzero((dfg.collective >= 0) & dfg.of(Cls.WAIT) & (dfg.rank >= 0) & np.isin(dfg.step, steps))
    # A line for each collective that occurs, a column for each rank: each arrival is put into its place.
    numbers, row = np.unique(dfg.collective[nodes], return_inverse=True)
    arrived = np.full((len(numbers), len(dfg.marks.ranks)), np.nan)
    arrived[row, np.searchsorted(dfg.marks.ranks, dfg.rank[nodes])] = dfg.recorded_ns[nodes]
    step = np.zeros(len(numbers), np.int64)
    step[row] = dfg.step[nodes]
    return Arrivals(dfg.marks.ranks, step, arrived)


def slow_ranks(dfg: Dfg, steps: tuple[int, ...]) -> list[Rank]:
    """Ranks that bear clearly more than an even share of the blame, and in more of the steps than chance would give.

    The list is empty where all ranks are late by turns, or where a single hiccup makes the difference.
    """
    seen = arrivals(dfg, steps)
    if not len(seen):
        return []
    late = seen.late_ns(steps)
    count, blamed = len(seen.ranks), late.sum(axis=0)
    slow = blamed > CLEARLY * blamed.sum() / count
    if len(steps) >= FEW_STEPS and slow.any():
        from scipy.special import bdtrc  # It takes half a second to import, and most runs have no slow rank.

        guilty = (late > CLEARLY * late.sum(axis=1, keepdims=True) / count).sum(axis=0)
        # `bdtrc(k - 1, n, p)` is the probability of k or more out of n. With more than two ranks, chance has more to pick
        # from, so that each may have only its share of CHANCE.
        slow &= bdtrc(guilty - 1, len(steps), 1 / count) <= CHANCE * 2 / count
    return [rank for rank, is_slow in zip(seen.ranks, slow, strict=True) if is_slow]
