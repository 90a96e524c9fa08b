"""Medians and means by identity, over arrays."""

import numpy as np


def medians_of(identity: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median of the int64 `values` under each identity in `wanted`, and a mask of those that are known at all."""
    if not len(identity):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    order = np.lexsort((values, identity))
    names, first, count = np.unique(identity[order], return_index=True, return_counts=True)
    ranked = values[order]
    middle = (ranked[first + (count - 1) // 2] + ranked[first + count // 2]) // 2
    return _looked_up(names, middle, wanted)


def means_of(identity: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `medians_of`, with means, rounded to whole numbers."""
    if not len(identity):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    names, which, count = np.unique(identity, return_inverse=True, return_counts=True)
    means = np.rint(np.bincount(which, weights=values) / count).astype(np.int64)
    return _looked_up(names, means, wanted)


def _looked_up(names: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return values[at], names[at] == wanted
