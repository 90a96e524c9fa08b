"""Codecs: what is lost, what it takes on the wire, and what is remembered."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esprof.elastic.reduce.codecs import Cast, codec, register_codec
from esprof.errors import UsageError

SPECS = ["fp16", "bf16", "topk:0.25"]


def roundtrip(made, gradient, state=None):
    out = torch.full_like(gradient, 7.0)
    made.decode(made.encode(gradient, {} if state is None else state), out)
    return out


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numel", [1, 3, 64])
def test_takes_as_many_bytes_as_it_says_and_decodes_all_of_it(spec, dtype, numel):
    made = codec(spec)
    gradient = torch.randn(numel, dtype=dtype)
    wire = made.encode(gradient, {})
    assert (wire.dtype, wire.shape) == (torch.uint8, (made.wire_bytes(numel),))
    out = torch.full_like(gradient, 7.0)
    made.decode(wire, out)
    assert not (out == 7.0).any()


@pytest.mark.parametrize("spec", SPECS)
def test_decodes_bytes_that_begin_anywhere(spec):
    made = codec(spec)
    gradient = torch.randn(10)
    wire = made.encode(gradient, {})
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), wire])[1:]
    out = torch.empty(10)
    made.decode(shifted, out)
    assert torch.equal(out, roundtrip(codec(spec), gradient))


@pytest.mark.parametrize(("spec", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_cast_rounds_to_nearest(spec, dtype):
    gradient = torch.tensor([1.0, -1e-3, 3.14159, 1e9, -0.0])
    assert torch.equal(roundtrip(codec(spec), gradient), gradient.to(dtype).float())


def test_top_k_sends_the_largest_and_adds_the_rest_to_the_next_gradient():
    made, state = codec("topk:0.5"), {}
    assert roundtrip(made, torch.tensor([4.0, 1.0, -3.0, 2.0]), state).tolist() == [4.0, 0.0, -3.0, 0.0]
    assert state["residual"].tolist() == [0.0, 1.0, 0.0, 2.0]
    assert roundtrip(made, torch.tensor([0.5, 1.5, 0.0, -0.5]), state).tolist() == [0.0, 2.5, 0.0, 1.5]
    assert state["residual"].tolist() == [0.5, 0.0, 0.0, 0.0]


@given(st.lists(st.integers(-64, 64), min_size=1, max_size=20), st.integers(1, 8))
def test_error_feedback_loses_nothing(values, steps):
    made, state = codec("topk:0.2"), {}
    gradient = torch.tensor(values, dtype=torch.float32)
    sent = sum(roundtrip(made, gradient, state) for _ in range(steps))
    assert torch.equal(sent + state["residual"], steps * gradient)


def test_none_is_no_codec():
    assert codec("none") is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zip", "no codec 'zip'; known are none, bf16, fp16, topk"),
        ("topk", "codec topk takes a number, as in topk:0.1, not ''"),
        ("topk:lots", "codec topk takes a number, as in topk:0.1, not 'lots'"),
        ("topk:1.5", "top-k sends a share between 0 and 1 of the entries, not 1.5"),
    ],
)
def test_says_what_is_wrong_with_a_text(spec, message):
    with pytest.raises(UsageError) as raised:
        codec(spec)
    assert raised.value.reason == message


def test_a_codec_of_ones_own_can_be_registered(monkeypatch):
    monkeypatch.setattr("esprof.elastic.reduce.codecs._FACTORIES", {})
    register_codec("half", lambda argument: Cast(f"half:{argument}", torch.float16))
    assert codec("half:up").spec == "half:up"


@pytest.mark.parametrize("spec", ["fp16", "bf16", "topk:0.1"])
def test_a_parameter_without_entries_takes_no_bytes(spec):
    made = codec(spec)
    assert made.wire_bytes(0) == made.encode(torch.zeros(0), {}).numel() == 0
    made.decode(torch.zeros(0, dtype=torch.uint8), torch.zeros(0))
