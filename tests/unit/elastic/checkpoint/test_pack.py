"""Nested state as JSON and tensors."""

import json
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.errors import UsageError
from esprof.elastic.checkpoint.pack import pack, unpack
from tests.cases.properties import thorough

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=5) | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=12,
)


@thorough()
@given(NESTED)
def test_what_is_packed_comes_back_the_same(value):
    packed = json.loads(json.dumps(pack(value, "here", {})))
    assert repr(unpack(packed, {})) == repr(value)


def test_tensors_are_named_by_their_place():
    tensors = {}
    packed = json.loads(json.dumps(pack({"a": [torch.ones(2), {3: torch.zeros(1)}]}, "top", tensors)))
    assert list(tensors) == ["top/a/0", "top/a/1/3"]
    back = unpack(packed, tensors)
    assert back["a"][0] is tensors["top/a/0"]
    assert back["a"][1][3] is tensors["top/a/1/3"]


def test_tensors_of_one_path_stay_apart():
    tensors = {}
    value = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}, 1: torch.full((1,), 2), "1": torch.full((1,), 3)}
    back = unpack(json.loads(json.dumps(pack(value, "top", tensors))), tensors)
    assert len(tensors) == 4
    assert (back["a/b"], back["a"]["b"], back[1], back["1"]) == (0, 1, 2, 3)


def test_a_counter_stays_one():
    assert unpack(pack(Counter([3, 3, 7]), "", {}), {}) == Counter({3: 2, 7: 1})
    assert isinstance(unpack(pack(Counter([3]), "", {}), {}), Counter)


def test_what_json_cannot_hold_is_named():
    with pytest.raises(UsageError, match="scheduler/lr_lambdas/0 is a function"):
        pack({"lr_lambdas": [lambda step: step]}, "scheduler", {})
