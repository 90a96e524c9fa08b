"""Medians and means by identity, over arrays."""

import numpy as np


def medians_of(
    identity: np.ndarray, values: np.ndarray, wanted: np.ndarray, *, low: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(median of the int64 `values` of each identity in `wanted`, mask of those that are in `identity` at all).

    The median is rounded down to a whole number; with `low` it is, of an even number of values, the lower of the two in the
    middle. Where the mask is False it is some other identity's.
    """
    if not len(identity):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    # In order of identity, and of value within one: of a run of n values the places (n - 1) // 2 and n // 2 are the middle.
    order = np.lexsort((values, identity))
    names, first, count = np.unique(identity[order], return_index=True, return_counts=True)
    ranked = values[order]
    lower, upper = ranked[first + (count - 1) // 2], ranked[first + count // 2]
    middle = lower if low else (lower + upper) // 2
    return _looked_up(names, middle, wanted)


def means_of(identity: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean of the `values` of each identity in `wanted`, rounded to a whole number; mask of those in `identity` at all).

    Where the mask is False the mean is some other identity's.
    """
    if not len(identity):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    # `which` numbers the identities: `bincount` with weights is the sum of the values of each.
    names, which, count = np.unique(identity, return_inverse=True, return_counts=True)
    means = np.rint(np.bincount(which, weights=values) / count).astype(np.int64)
    return _looked_up(names, means, wanted)


def _looked_up(names: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # `names` ascend: an identity can only stand where it would be inserted.
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return values[at], names[at] == wanted
