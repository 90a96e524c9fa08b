"""Hit rates of caches of all sizes for a sequence of reads."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.core.statistics import mean_margin
from esprof.replay.whatif.loading.cached_reads import fifo_hits, stack_distances

MAX_EXACT = 10_000_000
"""Most reads whose stack distances are computed exactly; of more, those of sampled items are."""

_SAMPLES = 4
"""Number of samples of the items, each by another hash: their scatter is the error of the sampling."""

_SAMPLED_READS, _SAMPLED_ITEMS = 1_000_000, 8_192
"""Least number of reads, and of items, in a sample."""


class HitRate(NamedTuple):
    """Share of reads that a cache answers."""

    rate: float
    margin: float = 0.0
    """Half the width of the 95 % interval; 0 if all reads were counted."""
    reads: int = 0
    """Number of reads in which the hits were counted; 0 if the rate follows from a formula."""


class _Distances(NamedTuple):
    """Stack distances of the reads of a share of the items."""

    read: np.ndarray
    """Number of each read in the whole sequence, ascending."""
    distance: np.ndarray
    """Its stack distance among these items; -1 at the first read of an item."""
    share: float


@dataclass(frozen=True)
class HitCurve:
    """Hit rates for N reads of M items.

    Hits are counted in steady state. The content of a cache of C items depends only on the last reads of C items. So the
    reads after those of the first C items count, and of these a whole number of periods, the last ones.
    """

    item: np.ndarray
    """Item of each read, int64[N]; items are numbered by their first read."""
    items: int
    """Number of items of the data set, of which a cache holds a share."""
    period: int
    """Number of reads after which their pattern may repeat: those of a pass over the data set."""

    @classmethod
    def of(cls, keys: np.ndarray, items: int, period: int | None = None) -> "HitCurve":
        """The curve for reads of `keys`, int64[N]; by default a period has as many reads as there are distinct keys."""
        _, first, item = np.unique(keys, return_index=True, return_inverse=True)
        number = np.empty(len(first), np.int64)
        number[np.argsort(first)] = np.arange(len(first))
        return cls(number[item.reshape(-1)], items, period or len(first))

    def rate(self, policy: str, share: float) -> HitRate | None:
        """The hit rate of a cache of a share of all items; None if there are too few reads for a cache of this size.

        Policies are `lru`, `fifo` and `minio`, as in `hit_rates.POLICIES`.
        """
        capacity = round(share * self.items)
        if capacity == 0 or share >= 1:
            return HitRate(float(capacity > 0), reads=len(self.item))
        first = self._first_counted(capacity)
        if first is None:
            return None
        counted = len(self.item) - first
        if policy == "lru":
            rates = [_hit_share(sample, capacity, first, counted) for sample in self._distances]
            margin = mean_margin(np.array(rates)) if len(rates) > 1 else 0.0
            return HitRate(float(np.mean(rates)), margin, counted)
        if policy == "fifo":
            return HitRate(fifo_hits(self.item, len(self._first_reads), capacity, first) / counted, reads=counted)
        assert policy == "minio", policy
        # It holds the items that were read first.
        return HitRate(float(np.mean(self.item[first:] < capacity)), reads=counted)

    @property
    def is_sampled(self) -> bool:
        """Whether LRU caches are judged by samples of the items."""
        return self._sampled_share < 1

    def _first_counted(self, capacity: int) -> int | None:
        if capacity > len(self._first_reads):
            return None
        full = int(self._first_reads[capacity - 1]) + 1
        periods = (len(self.item) - full) // self.period
        return len(self.item) - periods * self.period if periods else None

    @cached_property
    def _first_reads(self) -> np.ndarray:
        """Number of the first read of each item, int64[M], ascending."""
        return np.flatnonzero(np.diff(np.maximum.accumulate(self.item), prepend=-1))

    @cached_property
    def _sampled_share(self) -> float:
        if len(self.item) <= MAX_EXACT:
            return 1.0
        return min(1.0, max(_SAMPLED_READS / len(self.item), _SAMPLED_ITEMS / len(self._first_reads)))

    @cached_property
    def _distances(self) -> list[_Distances]:
        items, share = len(self._first_reads), self._sampled_share
        if not self.is_sampled:
            return [_Distances(np.arange(len(self.item)), stack_distances(self.item, items), 1.0)]
        return [sampled_distances(self.item, items, share, seed) for seed in range(_SAMPLES)]


def sampled_distances(item: np.ndarray, items: int, share: float, seed: int) -> _Distances:
    """Stack distances of the reads of a share of `items` items, chosen by a hash of their number.

    A distance among them is about `share` of that among all items (SHARDS; Waldspurger, Park, Garthwaite and Ahmad, FAST
    2015, section 3.1).
    """
    chosen = _mixed(np.arange(items, dtype=np.uint64) + np.uint64(seed * items)) < np.uint64(share * 2.0**64)
    read = np.flatnonzero(chosen[item])
    number = np.cumsum(chosen) - 1
    return _Distances(read, stack_distances(number[item[read]], int(chosen.sum())), share)


def _hit_share(sample: _Distances, capacity: int, first: int, counted: int) -> float:
    """Share of hits among the last `counted` reads, from number `first` on, of an LRU cache.

    Misses of the sample are related to the reads that it should have. An item that is read often hardly ever misses, so it
    matters little whether it is in the sample (SHARDS-adj in the paper).
    """
    distance = sample.distance[np.searchsorted(sample.read, first) :]
    misses = np.count_nonzero((distance < 0) | (distance >= capacity * sample.share))
    return float(np.clip(1 - misses / (counted * sample.share), 0, 1))


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """A hash of each number, uint64[N] (SplitMix64; Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
