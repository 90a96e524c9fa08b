"""Integers in the smallest type that holds them."""

import numpy as np
import pytest

from esprof.replay.ranks.narrow import narrow


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [([], 1), ([0, 255], 1), ([-1, 127], 1), ([-1, 200], 2), ([70_000], 4), ([-1, 1 << 31], 8), ([1 << 40], 8)],
)
def test_no_value_changes(values, bytes_each):
    found = narrow(np.array(values, np.int64))
    assert found.tolist() == values
    assert found.itemsize == bytes_each
