"""Counts can be added, and pickled between processes."""

import pickle

from esprof.replay.building.counts import BuildCounts


def test_each_number_adds_up_by_itself():
    total = BuildCounts(waits=2, waits_inferred=1) + BuildCounts(waits=3, kernels=4)
    assert total == BuildCounts(waits=5, waits_inferred=1, kernels=4)


def test_counts_survive_pickling_between_processes():
    counts = BuildCounts(collectives=3, lags_clamped=1)
    assert pickle.loads(pickle.dumps(counts)) == counts
