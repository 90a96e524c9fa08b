"""Slices of tracks."""

import numpy as np
import pytest

from esprof.analyzers.tracks.track import Slices


def slices(*intervals):
    start, end = np.array(intervals, np.int64).reshape(-1, 2).T
    nothing = np.zeros(len(start), np.int64)
    return Slices(start, end, nothing, ["a"], nothing, ["c"], {})


@pytest.mark.parametrize(
    ("intervals", "depths"),
    [
        ([], []),
        ([(0, 10), (0, 4), (4, 10), (10, 12)], [0, 0, 0, 0]),
        ([(0, 10), (5, 15), (12, 20)], [0, 1, 0]),
        ([(0, 10), (5, 15), (6, 16), (7, 8)], [0, 1, 2, 0]),
        ([(0, 10), (10, 10), (10, 12)], [0, 0, 0]),
    ],
    ids=["none", "nested and adjacent", "two cross", "three cross", "no duration"],
)
def test_slices_that_cross_are_in_different_rows(intervals, depths):
    assert slices(*intervals).depths() == depths
