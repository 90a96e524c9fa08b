"""Who keeps whom waiting: arrivals at collectives, and the waiting that the last rank causes."""

from dataclasses import dataclass

import numpy as np

from esprof.replay.dfg import Cls, Dfg
from esprof.types import Ns, Rank

CLEARLY = 1.4
"""A rank is slow when it bears this much more than an even share of the blame: of two ranks, seven tenths. Less is what
chance gives two equal ranks in a few dozen collectives."""


@dataclass(frozen=True)
class Arrivals:
    """When each rank came to each matched collective. Shapes: `collective`, `step` (C,), `arrived_ns` (C, ranks); the
    columns are `dfg.marks.ranks`. NaN where a rank is no member."""

    collective: np.ndarray
    step: np.ndarray
    arrived_ns: np.ndarray

    def excess_ns(self) -> np.ndarray:
        """Per collective and rank, by how much that rank, if the last, came after the second last; else 0.

        Counting last places is weaker: a rank may be last often and by nothing (docs/replay.md §4).
        """
        excess = np.zeros(self.arrived_ns.shape)
        if not len(self.collective):
            return excess
        order = np.sort(np.where(np.isnan(self.arrived_ns), -np.inf, self.arrived_ns), axis=1)
        last = np.nanargmax(self.arrived_ns, axis=1)
        # One arrival alone (the others launched it in another step) has nobody to be late for.
        excess[np.arange(len(last)), last] = np.where(np.isfinite(order[:, -2]), order[:, -1] - order[:, -2], 0)
        return excess


def arrivals(dfg: Dfg, steps: tuple[int, ...]) -> Arrivals:
    """Arrivals at the collectives that were issued in `steps`."""
    nodes = np.flatnonzero((dfg.collective >= 0) & dfg.of(Cls.WAIT) & (dfg.rank >= 0) & np.isin(dfg.step, steps))
    numbers, row = np.unique(dfg.collective[nodes], return_inverse=True)
    arrived = np.full((len(numbers), len(dfg.marks.ranks)), np.nan)
    arrived[row, np.searchsorted(dfg.marks.ranks, dfg.rank[nodes])] = dfg.recorded_ns[nodes]
    step = np.zeros(len(numbers), np.int64)
    step[row] = dfg.step[nodes]
    return Arrivals(numbers, step, arrived)


def blame(dfg: Dfg, steps: tuple[int, ...]) -> dict[Rank, Ns]:
    """Rank -> how much later than the second last it came to collectives, summed over `steps`."""
    totals = arrivals(dfg, steps).excess_ns().sum(axis=0)
    return {rank: int(total) for rank, total in zip(dfg.marks.ranks, totals, strict=True)}


def slow_ranks(dfg: Dfg, steps: tuple[int, ...]) -> list[Rank]:
    """Ranks that bear clearly more than an even share of the blame; none where all are late by turns."""
    blamed = blame(dfg, steps)
    even = sum(blamed.values()) / max(1, len(blamed))
    return [rank for rank, total in blamed.items() if total > CLEARLY * even]
