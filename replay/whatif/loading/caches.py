"""Caches for the reads of a DataLoader."""

from dataclasses import dataclass

from esprof.replay.whatif.loading.hit_curve import HitRate
from esprof.replay.whatif.loading.hit_rates import POLICIES
from esprof.replay.whatif.loading.recorded_reads import RecordedReads
from esprof.replay.whatif.scenario import Declined

_HALVINGS = 20
"""Number of halvings of the interval in which the size of a cache lies."""

_MAX_OFF = 0.05
"""Largest difference of the hits of a cache from those measured whose size is derived from these."""


@dataclass(frozen=True)
class ReadCache:
    """A cache of samples, shared by the ranks of a host."""

    policy: str
    """A key of `POLICIES`."""
    share: float
    """Share of the data set that it holds, from 0 to 1."""
    holds_prepared: bool = False
    """Whether it holds samples as the data set returns them, and not what was read for them."""

    def hits(self, reads: RecordedReads | None, hosts: int) -> HitRate:
        """Its hits in the reads of its host or, if these are none or too few, by the formula for fresh shuffles.

        Raises Declined if too few reads were recorded that are no fresh shuffles.
        """
        counted = reads.curve.rate(self.policy, self.share) if reads is not None else None
        if counted is not None:
            return counted
        if reads is not None and not reads.are_fresh_shuffles:
            raise Declined(
                "the recorded reads are too few to count the hits, and no fresh shuffle of the data set: record two passes"
            )
        return HitRate(POLICIES[self.policy](self.share, hosts))


def cache_that_is_there(reads: RecordedReads, hosts: int, hits: float) -> ReadCache:
    """The LRU cache that has this share of hits in `reads`. Raises Declined if its size does not follow from that."""
    least, most = 0.0, 1.0
    for _ in range(_HALVINGS if hits else 0):
        share = (least + most) / 2
        if ReadCache("lru", share).hits(reads, hosts).rate < hits:
            least = share
        else:
            most = share
    cache = ReadCache("lru", most)
    if abs(cache.hits(reads, hosts).rate - hits) > _MAX_OFF:
        raise Declined(
            f"the size of the present cache does not follow from its hits ({100 * hits:.0f} % of the reads): "
            "add a cache, such as cache[lru]=0.2"
        )
    return cache
