"""Lengths of unions of intervals."""

import numpy as np

from esprof.replay.engine.timeline import covered_ns


def covered(begin: list[int], end: list[int], starts: list[int], ends: list[int]) -> list[int]:
    """Time from each start to each end that the intervals cover."""
    until = [covered_ns(np.array(begin, int), np.array(end, int), np.array(moments)) for moments in (ends, starts)]
    return (until[0] - until[1]).tolist()


def test_time_covered_by_intervals():
    assert covered([10, 30], [20, 40], [0, 5, 15, 12, 41], [9, 35, 33, 18, 50]) == [0, 15, 8, 6, 0]
    assert covered([], [], [0], [9]) == [0]


def test_overlapping_intervals_count_once():
    assert covered([30, 10, 12], [40, 20, 15], [0, 14], [50, 31]) == [20, 7]


def test_times_since_1970_keep_their_nanoseconds():
    at = 1_700_000_000_123_456_789
    assert covered([at], [at + 7], [at - 1], [at + 3]) == [3]
