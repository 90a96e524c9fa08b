"""Pareto dominance: a row of a table dominates another if no column of it is larger."""

import numpy as np

from esprof.core.compiled import compiled_in_place


def undominated(ends: np.ndarray) -> np.ndarray:
    """Positions of the undominated rows of float64[K, D]; of equal rows the first."""
    moving = list[np.ndarray]()
    for column in ends.T:
        # A constant column, or a copy of another one, decides nothing.
        if column.min() < column.max() and not any(np.array_equal(column, other) for other in moving):
            moving.append(column)
    if not moving:
        return np.zeros(1, np.int64)
    order: np.ndarray = np.lexsort(moving[::-1])
    rows = np.stack(moving, axis=1)[order]
    found = np.empty(len(rows), np.int64)
    if len(moving) > 3:
        count = _climb(rows, found)
    elif len(moving) == 3:
        count = _sweep(rows, found, np.empty(len(rows)), np.empty(len(rows)))
    else:
        # Rows are sorted by the first column: an undominated row is below all earlier ones in the last column.
        least = np.minimum.accumulate(rows[:, -1])
        stay = np.flatnonzero(np.append(True, rows[1:, -1] < least[:-1]))
        count, found[: len(stay)] = len(stay), stay
    return order[found[:count]]


@compiled_in_place
def _sweep(rows: np.ndarray, found: np.ndarray, second: np.ndarray, third: np.ndarray) -> int:
    """`_climb` for three columns. `second` and `third` store the staircase of the rows so far that are undominated in the
    last two columns: ascending in `second`, descending in `third`."""
    count, stairs = 0, 0
    for at in range(len(rows)):
        behind, end = 0, stairs
        while behind < end:
            middle = (behind + end) // 2
            if second[middle] <= rows[at, 1]:
                behind = middle + 1
            else:
                end = middle
        if behind and third[behind - 1] <= rows[at, 2]:
            continue
        found[count] = at
        count += 1
        # The row replaces the stairs that it dominates.
        begin = behind - 1 if behind and second[behind - 1] == rows[at, 1] else behind
        end = begin
        while end < stairs and third[end] >= rows[at, 2]:
            end += 1
        if end == begin:
            for stair in range(stairs, begin, -1):
                second[stair], third[stair] = second[stair - 1], third[stair - 1]
        else:
            for stair in range(end, stairs):
                second[stair + begin + 1 - end], third[stair + begin + 1 - end] = second[stair], third[stair]
        second[begin], third[begin] = rows[at, 1], rows[at, 2]
        stairs += begin + 1 - end
    return count


@compiled_in_place
def _climb(rows: np.ndarray, found: np.ndarray) -> int:
    """Fill `found` with the positions of the undominated rows of a table sorted lexicographically by its columns; return
    their number."""
    count = 0
    for at in range(len(rows)):
        dominated = False
        # The latest rows are the likeliest to dominate it.
        for other in range(count - 1, -1, -1):
            dominated = True
            for column in range(rows.shape[1]):
                if rows[found[other], column] > rows[at, column]:
                    dominated = False
                    break
            if dominated:
                break
        if not dominated:
            found[count] = at
            count += 1
    return count
