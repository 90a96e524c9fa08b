"""Hit rates of the cache of a host if each pass reads each item once, in a new random order.

Several hosts divide each pass: every time, each of them reads another random part of the data set.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from esprof.replay.whatif.loading.hit_curve import HitCurve

_ITEMS, _ROUNDS = 4096, 16
"""Size of a simulation: the number of items, and how often a host reads each on average."""


def minio(share: float, hosts: int = 1) -> float:
    """A cache that never replaces an item (MinIO; CoorDL, VLDB 2021, section 6): the items that it holds are the hits."""
    return share


def lru(share: float, hosts: int = 1) -> float:
    """A cache that replaces the item that was not read for longest.

    One host reads an item at the fraction u of a pass and v of the next. In between, a share 1 - u (1 - v) of all items is
    read. The item is a hit if they fit, 1 - u (1 - v) <= x, which for uniform u and v has the probability
    x + (1 - x) ln(1 - x). Several hosts are simulated: a host reads in a pass only a part of what its cache held before.
    """
    if hosts > 1:
        return _simulated("lru", share, hosts)
    return share + (1 - share) * math.log(1 - share) if share < 1 else 1.0


def fifo(share: float, hosts: int = 1) -> float:
    """A cache that replaces the item that it has held for longest; simulated."""
    return _simulated("fifo", share, hosts)


def _simulated(policy: str, share: float, hosts: int) -> float:
    found = _simulation(hosts).rate(policy, share)
    return found.rate if found is not None else share  # Only a cache of nearly all items is not full in time.


@cache
def _simulation(hosts: int) -> HitCurve:
    rng, part = np.random.default_rng(0), max(1, _ITEMS // hosts)
    passes = [rng.permutation(_ITEMS)[:part] for _ in range(_ROUNDS * hosts)]
    return HitCurve.of(np.concatenate(passes), _ITEMS, part)


POLICIES: dict[str, Callable[[float, int], float]] = {"minio": minio, "lru": lru, "fifo": fifo}
"""Name of a policy -> its hit rate, for the share of the items that the cache of a host holds, from 0 to 1, and the number
of hosts."""
