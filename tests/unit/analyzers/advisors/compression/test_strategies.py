"""Espresso's decision tree: its published counts."""

import pytest

from esprof.analyzers.advisors.compression.strategies import Do, is_executable, strategies


@pytest.mark.parametrize(("devices", "count", "flat"), [(("gpu", "cpu"), 4341, 63), (("gpu",), 174, 12)])
def test_the_counts_are_as_published(devices, count, flat):
    found = list(strategies(devices))
    assert len(found) == len(set(found)) == count
    assert sum(all(task.where != "intra" for task in one) for one in found) == flat


def test_nine_strategies_compress_nothing():
    plain = [one for one in strategies() if all(task.do is not Do.COMPRESS for task in one)]
    assert len(plain) == 9


def test_all_strategies_end_uncompressed():
    for one in strategies():
        compressed = False
        for task in one:
            if task.do in (Do.COMPRESS, Do.DECOMPRESS):
                assert compressed == (task.do is Do.DECOMPRESS)
                compressed = not compressed
            elif task.do in (Do.ALL_REDUCE, Do.REDUCE, Do.REDUCE_SCATTER):
                assert not compressed
            elif task.do in (Do.ALL_TO_ALL, Do.GATHER):
                assert compressed
        assert not compressed


@pytest.mark.parametrize("ranks", ["all", "inter"])
def test_the_hook_executes_flat_strategies_and_the_same_between_machines(ranks):
    # An all-reduce; an all-gather or a sharded exchange for each device.
    for devices, count in ((("gpu", "cpu"), 5), (("gpu",), 3)):
        found = [one for one in strategies(devices) if is_executable(one)]
        assert len(found) == 2 * count
        assert sum(any(task.where == ranks for task in one) for one in found) == count
