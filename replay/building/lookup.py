"""Looking things up by time or by number, many at once."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from esprof.core.compiled import compiled
from esprof.core.types import Ns

_TIME_BITS = 45
"""9.7 hours in ns: no window that a profiler records is longer."""


class Sequences:
    """Things in order of time within groups, such as the work launched to each stream."""

    def __init__(self, group: np.ndarray, moment: np.ndarray, origin: Ns) -> None:
        """`group` and `moment` (ns) of each thing; a thing of group -1 is in none. No moment is before `origin`. Of two
        things at the same moment the one that stands first counts as the earlier one."""
        self._origin = origin
        keys = self._keys(group, moment)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def _keys(self, group: np.ndarray, moment: np.ndarray) -> np.ndarray:
        # The group in the upper bits, the time since `origin` in the lower ones: by these numbers things are in order of
        # group, and of moment within a group, so that one binary search finds both.
        keys: np.ndarray = (group.astype(np.int64) << _TIME_BITS) + (moment - self._origin)
        return keys

    def last(self, group: np.ndarray | int, moment: np.ndarray) -> np.ndarray:
        """The last thing of each group at or before a moment; -1 where there is none."""
        return self._at(group, moment, -1)

    def next(self, group: np.ndarray | int, moment: np.ndarray) -> np.ndarray:
        """The first thing of each group after a moment; -1 where there is none."""
        return self._at(group, moment, 0)

    def _at(self, group: np.ndarray | int, moment: np.ndarray, offset: int) -> np.ndarray:
        group = np.broadcast_to(group, moment.shape)
        # `searchsorted` counts the things up to the moment: the last of them stands one before that, the next one there.
        # Either may be of another group, which the upper bits tell.
        at = np.searchsorted(self._sorted, self._keys(group, moment), side="right") + offset
        at = np.where(at < len(self._sorted), at, -1)
        same = (group >= 0) & (entries(self._sorted, at, -1) >> _TIME_BITS == group)
        return np.where(same, entries(self._order, at, -1), -1)


def position(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The last place of each of `wanted` in `numbers`; -1 where there is none, and for what is no number (negative)."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    # `index_in` finds the first place, counted backwards the last one. What is not found counts as one behind all: -1.
    backwards = pc.index_in(pa.array(wanted), pa.array(numbers[::-1])).fill_null(len(numbers)).to_numpy()
    return np.where(wanted >= 0, len(numbers) - 1 - backwards, -1)


def entries(values: np.ndarray, at: np.ndarray, absent: int | bool) -> np.ndarray:
    """The entries of `values` at these places; `absent` where the place is -1."""
    if not len(values):
        return np.full(np.shape(at), absent, values.dtype)
    found: np.ndarray = values[at]  # For -1 numpy reads the last entry, which is then replaced.
    found[at < 0] = absent
    return found


def numbered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers as (int32 number of each, the distinct ones), numbered in the order in which they come."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy()


def pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One integer for each pair of numbers from 0 to below 2^31, different for different pairs."""
    combined: np.ndarray = first.astype(np.int64) << 32 | second
    return combined


@compiled
def occurrences(numbers: np.ndarray, visit: np.ndarray, distinct: int) -> tuple[np.ndarray, np.ndarray]:
    """(how often each of `numbers` came before in its visit, how often each number comes in one visit at most), int32.

    `numbers` go from 0 to below `distinct`; `visit` is the visit of each. The entries of a visit stand together.
    """
    # `latest` is the visit that each number was last seen in: in another one, counting begins anew.
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
