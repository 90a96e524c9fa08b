"""The moving-block bootstrap: how far chance may move a figure of steps that follow one another.

Steps are not independent: a slow disk or a noisy neighbour lasts for many. So what is drawn anew is not single steps, but
blocks of steps in a row, which overlap (Künsch, Annals of Statistics 17(3), 1989).
"""

import math
from collections.abc import Callable

import numpy as np

LEAST_REPLICATES = 2_000
_AT_ONCE = 1 << 20


def bootstrap(
    n: int,
    block: int,
    value_of: Callable[[np.ndarray], np.ndarray],
    replicates: int,
    rng: np.random.Generator,
    length: int | None = None,
) -> np.ndarray:
    """A value of each of so many series, each of `length` (else n) values, put together from blocks of the n at hand.

    `value_of` gives, for places int[series, length], the value of the series that stands there, float64[series].
    """
    length = n if length is None else length
    blocks = math.ceil(length / block)
    # As many series at once as fit into some megabytes.
    at_once = max(1, _AT_ONCE // (blocks * block))
    found = []
    for first in range(0, replicates, at_once):
        starts = rng.integers(0, n - block + 1, (min(at_once, replicates - first), blocks, 1))
        found.append(value_of((starts + np.arange(block)).reshape(len(starts), -1)[:, :length]))
    return np.concatenate(found)
