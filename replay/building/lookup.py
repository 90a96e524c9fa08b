"""Vectorized lookups by time or by number."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from esprof.core.compiled import compiled
from esprof.core.types import Ns

_Value = TypeVar("_Value", bound=Hashable)

_TIME_BITS = 45
"""9.7 hours in ns: no window that a profiler records is longer."""


class Sequences:
    """Items in order of time within groups, such as the work launched to each stream."""

    def __init__(self, group: np.ndarray, moment: np.ndarray, origin: Ns) -> None:
        """`group` and `moment` (ns) of each item; an item of group -1 belongs to no group. No moment is before `origin`
        (ns). Items at the same moment keep their order."""
        self._origin = origin
        keys = self._keys(group, moment)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def _keys(self, group: np.ndarray, moment: np.ndarray) -> np.ndarray:
        # Group in the upper bits, time since `origin` in the lower bits: one binary search then finds both.
        keys: np.ndarray = (group.astype(np.int64) << _TIME_BITS) + (moment - self._origin)
        return keys

    def last(self, group: np.ndarray | int, moment: np.ndarray) -> np.ndarray:
        """Index of the last item of each group at or before a moment; -1 if there is none."""
        return self._at(group, moment, -1)

    def next(self, group: np.ndarray | int, moment: np.ndarray) -> np.ndarray:
        """Index of the first item of each group after a moment; -1 if there is none."""
        return self._at(group, moment, 0)

    def _at(self, group: np.ndarray | int, moment: np.ndarray, offset: int) -> np.ndarray:
        group = np.broadcast_to(group, moment.shape)
        # `searchsorted` returns the index of the next item. That item or the one before may belong to another group, which
        # shows in the upper bits.
        at = np.searchsorted(self._sorted, self._keys(group, moment), side="right") + offset
        at = np.where(at < len(self._sorted), at, -1)
        same = (group >= 0) & (entries(self._sorted, at, -1) >> _TIME_BITS == group)
        return np.where(same, entries(self._order, at, -1), -1)


def position(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Index of the last occurrence of each of `wanted` in `numbers`; -1 if there is none, and for negative numbers."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    # `index_in` finds the first occurrence, in reversed order the last one. Missing numbers get the length, hence -1.
    backwards = pc.index_in(pa.array(wanted), pa.array(numbers[::-1])).fill_null(len(numbers)).to_numpy()
    return np.where(wanted >= 0, len(numbers) - 1 - backwards, -1)


def entries(values: np.ndarray, at: np.ndarray, absent: int | bool) -> np.ndarray:
    """The entries of `values` at the indices `at`; `absent` for index -1."""
    if not len(values):
        return np.full(np.shape(at), absent, values.dtype)
    found: np.ndarray = values[at]  # index -1 reads the last entry, which is then replaced
    found[at < 0] = absent
    return found


def numbered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int32 number of each of `values`, the distinct values), numbered in order of first occurrence."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy()


def common_numbers(values: Iterable[_Value], known: dict[_Value, int]) -> np.ndarray:
    """Number of each of `values`, int64: that in `known`, to which new ones are added. All ranks share it."""
    return np.array([known.setdefault(value, len(known)) for value in values], np.int64)


def pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pack pairs of numbers below 2^31 into one int64 each."""
    combined: np.ndarray = first.astype(np.int64) << 32 | second
    return combined


@compiled
def occurrences(numbers: np.ndarray, visit: np.ndarray, distinct: int) -> tuple[np.ndarray, np.ndarray]:
    """(earlier occurrences of each of `numbers` in its visit, maximum occurrences of each number in one visit), int32.

    `numbers` range from 0 to `distinct` - 1; `visit` is the visit of each. The entries of a visit are contiguous.
    """
    # `latest` is the visit in which each number last occurred; in another visit its count restarts.
    found, seen = np.empty(len(numbers), np.int32), np.zeros(distinct, np.int32)
    most, latest = np.zeros(distinct, np.int32), np.full(distinct, -1, np.int64)
    for i in range(len(numbers)):
        number = numbers[i]
        if latest[number] != visit[i]:
            latest[number], seen[number] = visit[i], 0
        found[i] = seen[number]
        seen[number] += 1
        most[number] = max(most[number], seen[number])
    return found, most
