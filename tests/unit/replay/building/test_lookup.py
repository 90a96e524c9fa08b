"""Lookups by time or number, compared with plain Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.building.lookup import Sequences, entries, numbered, occurrences, pairs, position
from tests.cases.properties import thorough

small = st.integers(-1, 4)
moments = st.integers(100, 130)


@given(st.lists(st.tuples(small, moments), max_size=20), st.lists(st.tuples(small, st.integers(90, 140)), max_size=10))
def test_the_last_before_and_the_first_after_a_moment(things, wanted):
    group, moment = (np.array([pair[column] for pair in things], np.int64) for column in (0, 1))
    groups, at = (np.array([pair[column] for pair in wanted], np.int64) for column in (0, 1))
    found = Sequences(group, moment, origin=100)
    for n, (mine, when) in enumerate(wanted):
        own = [i for i, (other, _) in enumerate(things) if other == mine >= 0]
        before = [i for i in own if things[i][1] <= when]
        after = [i for i in own if things[i][1] > when]
        assert found.last(groups, at)[n] == max(before, key=lambda i: (things[i][1], i), default=-1)
        assert found.next(groups, at)[n] == min(after, key=lambda i: (things[i][1], i), default=-1)


@given(st.lists(small, max_size=20), st.lists(small, max_size=10))
def test_where_a_number_stands_last(numbers, wanted):
    found = position(np.array(numbers, np.int64), np.array(wanted, np.int64))
    last = {number: at for at, number in enumerate(numbers)}
    assert found.tolist() == [last.get(number, -1) if number >= 0 else -1 for number in wanted]


@given(st.lists(st.integers(-(2**62), 2**62), max_size=20))
def test_numbers_come_in_order_of_appearance(values):
    number, distinct = numbered(np.array(values, np.int64))
    assert distinct.tolist() == list(dict.fromkeys(values))
    assert distinct[number].tolist() == values


@thorough()
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), max_size=5))
def test_how_often_a_number_came_before_in_its_visit(visits):
    numbers = np.array([number for visit in visits for number in visit], np.int32)
    visit = np.repeat(np.arange(len(visits)), [len(visit) for visit in visits])
    found, most = occurrences(numbers, visit, 4)
    assert found.tolist() == [visit[:at].count(number) for visit in visits for at, number in enumerate(visit)]
    assert most.tolist() == [max((visit.count(number) for visit in visits), default=0) for number in range(4)]


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)), max_size=20))
def test_different_pairs_are_different_numbers(values):
    first, second = (np.array([pair[column] for pair in values], np.int64) for column in (0, 1))
    assert len(set(pairs(first, second).tolist())) == len(set(values))


def test_an_entry_that_is_nowhere():
    values = np.array([7, 8])
    assert entries(values, np.array([1, -1, 0]), -5).tolist() == [8, -5, 7]
    assert entries(values[:0], np.array([-1]), 3).tolist() == [3]
