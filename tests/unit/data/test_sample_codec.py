"""Samples as bytes: all that can be encoded comes back equal, and all else is named."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

torch = pytest.importorskip("torch")

from esprof.core.errors import UsageError  # noqa: E402  needs torch
from esprof.data.sample_codec import decode, encode  # noqa: E402
from tests.cases.properties import thorough  # noqa: E402

ARRAYS = st.sampled_from([np.uint8, np.int64, np.float32, np.complex64, np.bool_, np.float16]).flatmap(
    lambda kind: arrays(kind, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
SAMPLES = st.recursive(
    PLAIN | ARRAYS | ARRAYS.map(torch.from_numpy),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=8,
)


def alike(one: Any, other: Any) -> bool:
    """Whether two samples are equal in types, shapes and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(alike, one.values(), other.values()))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and alike(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return np.float64(one).tobytes() == np.float64(other).tobytes() if isinstance(one, float) else one == other


@thorough()
@given(SAMPLES)
def test_a_sample_comes_back_equal(sample):
    assert alike(decode(encode(sample)), sample)


@pytest.mark.parametrize(
    "sample",
    [
        torch.zeros(3, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.arange(6).reshape(2, 3).T,
        np.arange(6).reshape(2, 3).T,
        np.float32(1.5),
        np.array("2020-01-01", "M8[D]")[()],
        {"x": (torch.ones(2), [1, b"2", None])},
    ],
    ids=str,
)
def test_views_scalars_and_other_types_come_back_equal(sample):
    back = decode(encode(sample))
    assert type(back) is type(sample)
    assert str(back) == str(sample)


def test_what_comes_back_can_be_written_to():
    data = encode([torch.zeros(2), np.zeros(2)])
    for one in decode(data):
        one += 1
    assert decode(data)[0].sum() == 0


@pytest.mark.parametrize(
    "sample",
    [
        object(),
        {1.5: 2},
        namedtuple("Pair", "x y")(1, 2),
        np.array([None]),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2).to_sparse(),
        1 << 70,
        {"x": {1, 2}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sample_that_cannot_be_encoded_is_named(sample):
    with pytest.raises(UsageError, match="which the cache cannot hold"):
        encode(sample)
