"""Hit rates of caches, if each epoch reads all items once, in a new random order."""

import math
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

_ITEMS, _EPOCHS = 4096, 6
"""Items and epochs of the simulation of a FIFO cache."""


def minio(share: float) -> float:
    """A cache that never replaces an item (MinIO; CoorDL, VLDB 2021, §6): the items that it holds are the hits."""
    return share


def lru(share: float) -> float:
    """A cache that replaces the item that was not read for longest.

    An item is read at the fraction u of an epoch and v of the next. In between, a share 1 - u (1 - v) of all items is read.
    The item is a hit if they fit, 1 - u (1 - v) <= x, which for uniform u and v has the probability x + (1 - x) ln(1 - x).
    """
    return share + (1 - share) * math.log(1 - share) if share < 1 else 1.0


def fifo(share: float) -> float:
    """A cache that replaces the item that it has held for longest; simulated."""
    held, capacity = OrderedDict[int, None](), round(share * _ITEMS)
    if capacity in (0, _ITEMS):
        return float(share)
    rng, hits = np.random.default_rng(0), 0
    for epoch in range(_EPOCHS):
        for item in rng.permutation(_ITEMS).tolist():
            if item in held:
                hits += epoch >= _EPOCHS // 2
                continue
            if len(held) >= capacity:
                held.popitem(last=False)
            held[item] = None
    return hits / _ITEMS / (_EPOCHS - _EPOCHS // 2)


POLICIES: dict[str, Callable[[float], float]] = {"minio": minio, "lru": lru, "fifo": fifo}
"""Name of a policy -> its hit rate, for the share of the items that the cache holds, from 0 to 1."""
