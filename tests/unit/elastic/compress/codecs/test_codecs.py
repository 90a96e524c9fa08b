"""Codecs: what is lost, what it takes on the wire, and what is remembered."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.errors import UsageError
from esprof.elastic.compress.codecs.cast import Cast
from esprof.elastic.compress.codecs.registry import codec, register_codec

SPECS = ["fp16", "bf16", "int8", "int4", "sign", "topk:0.25", "randk:0.25", "powersgd:2"]


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
        ("zip", "no codec 'zip'; known are none, bf16, fp16, int4, int8, powersgd, randk, sign, topk"),
        ("topk", "codec topk takes a number, as in topk:0.1, not ''"),
        ("topk:lots", "codec topk takes a number, as in topk:0.1, not 'lots'"),
        ("topk:1.5", "top-k needs a share between 0 and 1, not 1.5"),
    ],
)
def test_says_what_is_wrong_with_a_text(spec, message):
    with pytest.raises(UsageError) as raised:
        codec(spec)
    assert raised.value.reason == message


def test_a_codec_of_ones_own_can_be_registered(monkeypatch):
    monkeypatch.setattr("esprof.elastic.compress.codecs.registry._FACTORIES", {})
    register_codec("half", lambda argument: Cast(f"half:{argument}", torch.float16))
    assert codec("half:up").spec == "half:up"


@pytest.mark.parametrize("spec", ["fp16", "bf16", "topk:0.1"])
def test_a_parameter_without_entries_takes_no_bytes(spec):
    made = codec(spec)
    assert made.wire_bytes(0) == made.encode(torch.zeros(0), {}).numel() == 0
    made.decode(torch.zeros(0, dtype=torch.uint8), torch.zeros(0))


def error(made, gradient, state=None):
    """vNMSE: the squared error of what arrives, relative to the squared gradient."""
    return float(((roundtrip(made, gradient, state) - gradient) ** 2).sum() / (gradient**2).sum())


@pytest.mark.parametrize(
    ("spec", "most"), [("int8", 1e-4), ("int4", 0.03), ("sign", 0.5), ("topk:0.25", 0.4), ("bf16", 1e-5)]
)
def test_what_is_lost_of_normal_numbers(spec, most):
    gradient = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert 0 < error(codec(spec), gradient) < most


@pytest.mark.parametrize("numel", [1, 5, 63, 127, 128, 130, 1000])
def test_random_k_takes_every_entry_in_its_turn(numel):
    made, seen = codec("randk:0.3"), torch.zeros(numel)
    state: dict[str, torch.Tensor] = {}
    for _ in range(60):
        seen += roundtrip(made, torch.ones(numel), state) > 0
    assert (seen > 0).all()
    # What was sent and what was not are all that came.
    assert int(state["step"]) == 60


@pytest.mark.parametrize("spec", ["int4", "sign", "topk:0.1", "randk:0.1", "powersgd:2"])
def test_what_is_not_sent_comes_later(spec):
    random = torch.Generator().manual_seed(1)
    gradients = [torch.randn(300, generator=random) for _ in range(30)]
    made, state = codec(spec), {}
    sent = sum(roundtrip(made, gradient, state) for gradient in gradients)
    assert torch.allclose(sent + state["residual"], sum(gradients), atol=1e-4)


@pytest.mark.parametrize("spec", ["fp16", "bf16", "randk:0.5", "powersgd:2"])
def test_one_rank_alone_reduces_to_what_it_sends(spec):
    made, gradient = codec(spec), torch.randn(200, generator=torch.Generator().manual_seed(2))
    reduced = gradient.clone()
    list(made.reduce(reduced, {}, 1))
    assert torch.allclose(reduced, roundtrip(made, gradient), atol=1e-5)


def test_powersgd_is_exact_for_a_gradient_of_its_rank():
    left, right = torch.randn(2, 20, 2, generator=torch.Generator().manual_seed(3))
    gradient = (left @ right.T).ravel()
    assert error(codec("powersgd:2"), gradient) < 1e-6


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_does_not_become_finite(spec, bad):
    made, gradient = codec(spec), torch.ones(600)
    gradient[7] = bad
    if spec.startswith("randk"):
        (value,) = made.reduce(gradient, {}, 1)
        assert not value.isfinite().any()
    else:
        assert not roundtrip(made, gradient).isfinite().all()


@pytest.mark.parametrize(("spec", "message"), [("int8:3", "takes no argument"), ("powersgd:1.5", "a whole number")])
def test_arguments_that_cannot_be(spec, message):
    with pytest.raises(UsageError, match=message):
        codec(spec)
