"""Values are noted, copied and made again; what cannot be is known."""

import random
from collections import Counter, OrderedDict, deque

import numpy as np
import pytest
import torch

from esprof.elastic.reach.values import can_move, can_move_with_est, copied, is_long, made, note, same, write_into


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else type(a) is type(b) and a == b


VALUES = [
    (1, 2),
    ([1, "a", None], [1, "a"]),
    ({"a": [1.5], 2: {3}}, {"a": [1.5], 2: {4}}),
    (OrderedDict(a=1), OrderedDict(a=2)),
    (Counter("aab"), Counter("abb")),
    (deque([1, 2], 3), deque([2, 3], 3)),
    ((1, (2, 3)), (1, (2, 4))),
    (torch.arange(3), torch.arange(3) + 1),
    (np.arange(3.0), np.arange(3.0) + 1),
]


@pytest.mark.parametrize(("value", "other"), VALUES)
def test_a_copy_makes_the_value_again_also_in_place(value, other):
    assert can_move_with_est(value)
    copy = copied(value)
    assert equal(made(copy), value)
    if write_into(other, copy):
        assert equal(other, value)
    else:
        assert isinstance(value, int | tuple)


@pytest.mark.parametrize("change", [lambda v: v.append(1), lambda v: v[0].add_(1), lambda v: v.__setitem__(1, 2)])
def test_a_note_shows_a_change_in_place(change):
    value = [torch.zeros(1), 1]
    before = note(value)
    assert same(before, note(value))
    change(value)
    assert not same(before, note(value))


def test_a_nan_has_not_changed():
    value = float("nan")
    assert same(note(value), note(value))
    assert not same(note(1), note(1.0))


def test_generators_are_set_back():
    for generator, draw in [
        (random.Random(0), lambda g: g.random()),
        (np.random.default_rng(0), lambda g: g.random()),
        (np.random.RandomState(0), lambda g: g.rand()),
        (torch.Generator().manual_seed(0), lambda g: float(torch.rand((), generator=g))),
    ]:
        copy, before = copied(generator), note(generator)
        first = draw(generator)
        assert not same(before, note(generator))
        assert write_into(generator, copy)
        assert draw(generator) == first


def test_what_refers_to_itself_or_is_long_does_not_move():
    ring = []
    ring.append(ring)
    assert not can_move(ring)
    assert not is_long(ring)
    assert same(note(ring), note(ring))
    for long in ([0] * 10_001, [torch.zeros(1)] * 1025, {"log": [0] * 10_001}):
        assert is_long(long)
        assert not can_move_with_est(long)
