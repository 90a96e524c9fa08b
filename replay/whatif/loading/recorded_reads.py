"""Samples that the DataLoaders of a host read, if their keys were recorded."""

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from esprof.core.types import Rank
from esprof.replay.whatif.loading.hit_curve import HitCurve
from esprof.replay.whatif.loading.orders import ReadOrder
from esprof.replay.whatif.loading.passes import training_loaders
from esprof.run.run import Run

_PASSES = 4
"""Least number of passes in another order: their hits are counted in steady state."""

_WHOLE = 0.9
"""Least length of a whole pass, relative to the longest one."""

_MAX_REPEATED, _MAX_ASCENDING = 0.02, 0.75
"""Largest share of reads of a pass that repeat a sample of it, and that ask for a higher index than the read before, in a
fresh shuffle. A distributed sampler repeats a few samples so that all ranks read as many."""


@dataclass(frozen=True)
class RecordedReads:
    """N reads of samples in the order in which they were asked for, from all training passes of a host."""

    key: np.ndarray
    """Key of each sample, int64[N]."""
    number: np.ndarray
    """Number of the pass of each read, int64[N], from 0: the ranks of the host make a pass together."""
    items: int
    """Number of samples of the data set; if it is unknown, of those read."""

    @cached_property
    def curve(self) -> HitCurve:
        """Hit rates of caches for these reads."""
        lengths = np.bincount(self.number)
        return HitCurve.of(self.key, self.items, int(lengths.max()) if len(lengths) > 1 else None)

    @cached_property
    def are_fresh_shuffles(self) -> bool:
        """Whether each pass reads each sample once, and not in the order of the data set."""
        distinct = sum(len(np.unique(keys)) for keys in self._passes)
        ascending = max((float(np.mean(np.diff(keys) > 0)) for keys in self._passes if len(keys) > 1), default=0.0)
        return bool(distinct >= (1 - _MAX_REPEATED) * len(self.key) and ascending <= _MAX_ASCENDING)

    def ordered(self, order: ReadOrder) -> "RecordedReads":
        """The reads of the whole passes in another order, repeated until there are `_PASSES` passes.

        If less than one pass was recorded, its samples stand for the whole data set. Raises Declined as `ReadOrder.of`.
        """
        if order not in self._ordered:
            self._ordered[order] = self._in(order)
        return self._ordered[order]

    @cached_property
    def _ordered(self) -> dict[ReadOrder, "RecordedReads"]:
        """Known results of `ordered`: all ranks of a host ask for the same."""
        return {}

    def _in(self, order: ReadOrder) -> "RecordedReads":
        rng, longest = np.random.default_rng(0), max(map(len, self._passes))
        whole = [keys for keys in self._passes if len(keys) >= _WHOLE * longest]
        passes = [order.of(whole[n % len(whole)], rng) for n in range(max(_PASSES, len(whole)))]
        number = np.repeat(np.arange(len(passes)), [len(keys) for keys in passes])
        is_part = len(self._passes) == 1 and longest < self.items
        items = len(np.unique(self.key)) if is_part else self.items
        return RecordedReads(np.concatenate(passes), number, items)

    @cached_property
    def _passes(self) -> list[np.ndarray]:
        """Keys of the reads of each pass."""
        in_order, ends = np.argsort(self.number, kind="stable"), np.cumsum(np.bincount(self.number))
        return [keys for keys in np.split(self.key[in_order], ends[:-1]) if len(keys)]


_KNOWN: WeakKeyDictionary[Run, dict[str | None, RecordedReads | None]] = WeakKeyDictionary()
"""Reads of each run by host: scenarios of one run share their hit curves."""


def recorded_reads(run: Run, rank: Rank) -> RecordedReads | None:
    """The reads on the host of `rank`, whose ranks share its caches; None if no keys were recorded."""
    of_hosts, host = _KNOWN.setdefault(run, {}), run.rank(rank).host
    if host not in of_hosts:
        of_hosts[host] = _read(run, [one for one in run.ranks if run.rank(one).host == host])
    return of_hosts[host]


def _read(run: Run, ranks: list[Rank]) -> RecordedReads | None:
    keys, numbers, starts, items = [], [], [], 0
    for rank in ranks:
        accesses, loaders = run.accesses(rank), training_loaders(run, rank)
        accesses = accesses.where(np.isin(accesses.ints("loader"), loaders))
        keys.append(accesses.ints("key"))
        numbers.append(np.searchsorted(loaders, accesses.ints("loader")))
        starts.append(accesses.ints("start_ns"))
        items = max(items, int(accesses.ints("items").max(initial=0)))
    key, number = np.concatenate(keys), np.concatenate(numbers)
    if not len(key):
        return None
    in_order = np.argsort(np.concatenate(starts), kind="stable")
    return RecordedReads(key[in_order], number[in_order] - number.min(), items or len(np.unique(key)))
