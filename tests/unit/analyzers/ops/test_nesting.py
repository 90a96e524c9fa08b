"""Sweeps over nested calls, compared with references that examine every instant and every pair of calls."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.ops.nesting import nearest, nested, with_inner
from tests.cases.properties import thorough

KEYS = 3


@st.composite
def any_calls(draw):
    """Calls on two threads that overlap arbitrarily, in the order of the sweeps: (thread, start, end, key)."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 12), st.integers(0, KEYS - 1)), max_size=25
        )
    )
    rows.sort(key=lambda row: (row[0], row[1], -row[2]))
    thread, start, dur, key = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else [np.zeros(0, np.int64)] * 4
    )
    return thread, start, start + dur, key


@st.composite
def nested_calls(draw, most=20):
    """Properly nested, nonempty calls on one thread."""
    ends, rows, at = [10_000], [], 0
    for _ in range(draw(st.integers(0, most))):
        for _ in range(draw(st.integers(0, len(ends) - 1))):
            at = max(at, ends.pop())
        room = ends[-1] - at
        if room < 4:
            break
        at += draw(st.integers(1, max(1, room // 4)))
        length = draw(st.integers(2, max(2, (ends[-1] - at) // 2)))
        if at + length >= ends[-1]:
            break
        rows.append((0, at, at + length, draw(st.integers(0, KEYS - 1))))
        ends.append(at + length)
    return (
        tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))
        if rows
        else (np.zeros(0, np.int64),) * 4
    )


def is_nested(calls, inner, outer):
    thread, start, end, _ = calls
    return inner > outer and thread[inner] == thread[outer] and start[inner] < end[outer] and end[inner] <= end[outer]


@thorough()
@given(any_calls())
def test_the_latest_started_call_owns_each_instant(calls):
    thread, start, end, key = calls
    expected = np.zeros(len(start), np.int64)
    for moment in range(40):
        for which in (0, 1):
            is_open = [i for i in range(len(start)) if thread[i] == which and start[i] <= moment < end[i]]
            if is_open:
                expected[is_open[-1]] += 1
    own, *_ = nested(thread, start, end, key, KEYS)
    assert own.tolist() == expected.tolist()


@thorough()
@given(any_calls())
def test_total_time_of_a_key_is_the_union_of_its_calls(calls):
    thread, start, end, key = calls
    expected = np.zeros(KEYS, np.int64)
    for moment in range(40):
        for which in (0, 1):
            mine = (thread == which) & (start <= moment) & (moment < end)
            expected[np.unique(key[mine])] += 1
    *_, adds = nested(thread, start, end, key, KEYS)
    assert np.bincount(key, weights=adds, minlength=KEYS).tolist() == expected.tolist()


@thorough()
@given(nested_calls())
def test_own_time_excludes_direct_children(calls):
    _, start, end, _ = calls
    own, enclosing, *_ = nested(*calls, KEYS)
    for i in range(len(start)):
        outer = [j for j in range(len(start)) if is_nested(calls, i, j)]
        assert enclosing[i] == (outer[-1] if outer else -1)
        children = [j for j in range(len(start)) if enclosing[j] == i]
        assert own[i] == end[i] - start[i] - sum(end[j] - start[j] for j in children)


@thorough()
@given(nested_calls())
def test_nested_calls_of_a_key_are_not_outermost(calls):
    key = calls[3]
    _, _, outermost, _ = nested(*calls, KEYS)
    for i in range(len(key)):
        assert outermost[i] == (not any(is_nested(calls, i, j) and key[j] == key[i] for j in range(len(key))))


@thorough()
@given(nested_calls(), st.data())
def test_inner_values_count_for_every_enclosing_call(calls, data):
    _, enclosing, *_ = nested(*calls, KEYS)
    values = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=len(enclosing), max_size=len(enclosing))), np.int64
    )
    expected = [
        values[i] + sum(values[j] for j in range(len(enclosing)) if is_nested(calls, j, i))
        for i in range(len(enclosing))
    ]
    assert with_inner(enclosing, values).tolist() == expected


@thorough()
@given(nested_calls())
def test_the_nearest_wanted_call_is_the_call_itself_or_the_innermost_enclosing(calls):
    wanted = calls[3] == 0
    _, enclosing, *_ = nested(*calls, KEYS)
    found = nearest(enclosing, wanted)
    for i in range(len(wanted)):
        candidates = [j for j in range(len(wanted)) if wanted[j] and (i == j or is_nested(calls, i, j))]
        assert found[i] == (candidates[-1] if candidates else -1)
