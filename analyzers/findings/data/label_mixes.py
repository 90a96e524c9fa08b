"""How much the mixes of classes differ that ranks train on, and how much of that is chance."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.statistics import homogeneity_test
from esprof.core.types import Rank
from esprof.run.run import Run


@dataclass(frozen=True)
class LabelMixes:
    """The labels of the ranks that passed any to `esprof.labels`: R ranks, C classes."""

    ranks: tuple[Rank, ...]
    classes: np.ndarray
    """Numbers of the classes, ascending, int64[C]."""
    counts: np.ndarray
    """Samples of each class on each rank, int64[R, C]; no rank and no class is without any."""

    @classmethod
    def of(cls, run: Run) -> "LabelMixes | None":
        """None if fewer than two ranks of the run have labels."""
        tables = {rank: run.recorded("labels", rank) for rank in run.ranks}
        found = {rank: one for rank, one in tables.items() if one is not None and one.ints("samples").clip(0).sum() > 0}
        if len(found) < 2:
            return None
        classes = np.unique(np.concatenate([one.ints("label") for one in found.values()]))
        counts = np.zeros((len(found), len(classes)), np.int64)
        for row, one in zip(counts, found.values(), strict=True):
            row[np.searchsorted(classes, one.ints("label"))] = one.ints("samples").clip(0)
        return cls(tuple(found), classes, counts)

    @property
    def mixes(self) -> np.ndarray:
        """Share of each class on each rank, float64[R, C]."""
        shares: np.ndarray = self.counts / self.counts.sum(axis=1, keepdims=True)
        return shares

    @property
    def mix(self) -> np.ndarray:
        """Share of each class on all ranks together, float64[C]."""
        shares: np.ndarray = self.counts.sum(axis=0) / self.counts.sum()
        return shares

    @cached_property
    def distance(self) -> np.ndarray:
        """Total variation distance of each rank's mix from that of all ranks together, float64[R]: the share of its samples
        that would need another class to make both equal."""
        distance: np.ndarray = np.abs(self.mixes - self.mix).sum(axis=1) / 2
        return distance

    @cached_property
    def by_chance(self) -> np.ndarray:
        """Expected distance if each sample were on a random rank, float64[R].

        The share of a class with the share p of all N samples differs on n of them from p by a nearly normal number of
        variance p (1 - p) (1/n - 1/N), whether the n are drawn from the N or all are drawn from a larger set. The mean size
        of such a number is sqrt(2 / π) times its standard deviation, of which the distance counts half.
        """
        of_rank = self.counts.sum(axis=1)
        variance = np.outer(1 / of_rank - 1 / of_rank.sum(), self.mix * (1 - self.mix))
        expected: np.ndarray = np.sqrt(variance / (2 * math.pi)).sum(axis=1)
        return expected

    @property
    def excess(self) -> np.ndarray:
        """Distance beyond that by chance, float64[R]."""
        excess: np.ndarray = self.distance - self.by_chance
        return excess

    @property
    def p_value(self) -> float:
        """Probability that chance alone makes the ranks' mixes differ so much."""
        return homogeneity_test(self.counts)
