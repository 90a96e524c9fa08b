"""Hits of caches in short sequences of reads, against caches that are simulated item by item."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.whatif.loading.cached_reads import fifo_hits, stack_distances
from tests.cases.caches import simulated

MOST = 9
READS = st.lists(st.integers(0, MOST), max_size=60)


def test_the_distance_counts_other_items_once():
    item = np.array([0, 1, 1, 2, 1, 0, 0])
    assert stack_distances(item, 3).tolist() == [-1, -1, 0, -1, 1, 2, 0]


@given(READS)
def test_a_read_is_a_hit_in_every_lru_cache_larger_than_its_distance(items):
    distance = stack_distances(np.array(items, np.int64), MOST + 1)
    for capacity in range(MOST + 3):
        hits = (distance >= 0) & (distance < capacity)
        assert hits.tolist() == simulated(items, capacity, "lru")


@given(READS, st.integers(0, 60))
def test_fifo_hits_are_those_of_a_queue(items, first):
    for capacity in range(MOST + 3):
        expected = sum(simulated(items, capacity, "fifo")[first:])
        assert fifo_hits(np.array(items, np.int64), MOST + 1, capacity, first) == expected


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_data_set_in_order_never_hits_an_lru_or_fifo_cache(share):
    """Each item is replaced just before it is read again."""
    item, capacity = np.tile(np.arange(100), 5), int(share * 100)
    assert (stack_distances(item, 100)[100:] == 99).all()
    assert fifo_hits(item, 100, capacity, 0) == 0
