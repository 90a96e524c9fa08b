"""The fewest items that still do what all of them do."""

import pytest

from esprof.analyzers.sharing.fewest import fewest


@pytest.mark.parametrize("needed", [set(), {0}, {99}, {3, 50}, set(range(40, 60)), set(range(100))])
def test_the_needed_items_stay(needed):
    assert fewest(range(100), lambda kept: needed <= set(kept)) == sorted(needed)


def test_few_needed_items_take_few_tests():
    tests = []
    fewest(range(1000), lambda kept: tests.append(1) or {7, 700} <= set(kept))
    assert len(tests) < 60


def test_chunks_are_not_split_further_than_asked():
    kept = fewest(range(64), lambda kept: 5 in kept, least=16)
    assert 5 in kept
    assert len(kept) == 16


def test_no_items_stay_if_none_are_needed_or_given():
    assert fewest([], lambda kept: True) == []
    assert fewest([1], lambda kept: True) == []
    assert fewest([1], lambda kept: bool(kept)) == [1]
