"""Where gradients lie, and when a stretch of them is complete."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esprof.core.errors import UsageError
from esprof.elastic.reduce.layout import Countdown, Layout


def model(*sizes):
    made = nn.Module()
    for number, size in enumerate(sizes):
        made.register_parameter(f"p{number}", nn.Parameter(torch.zeros(size)))
    return made


def one_parameter():
    """A layout, a flat tensor of it, and a loss whose gradient is 0.0, -0.0 and 1.0."""
    made = model(3)
    layout = Layout(made, 1, 100)
    layout.detach()
    return layout, layout.new(), lambda: (made.p0 * torch.tensor([0.0, -0.0, 1.0])).sum()


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(1, 7), st.integers(1, 2000))
def test_slots_follow_one_another_in_reverse_and_buckets_divide_among_the_ranks(sizes, world, bucket_bytes):
    layout = Layout(model(*sizes), world, bucket_bytes)
    assert [slot.name for slot in layout.slots] == [f"p{number}" for number in reversed(range(len(sizes)))]
    ends = [0]
    for bucket in layout.buckets:
        assert bucket.start == ends[-1]
        assert (bucket.stop - bucket.start) % world == 0
        assert all(bucket.start <= slot.start < slot.stop <= bucket.stop for slot in bucket.slots)
        ends.append(bucket.stop)
    assert layout.numel == ends[-1]
    assert all(before.stop <= after.start for before, after in zip(layout.slots, layout.slots[1:], strict=False))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(1, 2000))
def test_a_gradient_begins_equally_aligned_in_every_world(sizes, bucket_bytes):
    for world in (1, 2, 3, 5):
        flat = Layout(model(*sizes), world, bucket_bytes)
        assert all(slot.start * flat.dtype.itemsize % 64 == 0 for slot in flat.slots)


def test_signs_of_zero_stay_as_they_are():
    layout, flat, loss = one_parameter()
    loss().backward()
    assert layout.take(layout.slots[0], flat)
    assert torch.signbit(layout.slots[0].parameter.grad).tolist() == [False, True, False]


def test_a_second_gradient_is_added_where_the_first_one_is():
    layout, flat, loss = one_parameter()
    (slot,) = layout.slots
    for _ in range(2):
        loss().backward()
        assert layout.take(slot, flat)
    assert slot.of(flat).tolist() == [0.0, 0.0, 2.0]
    assert layout.holds()
    slot.parameter.grad = slot.parameter.grad.clone()
    assert not layout.take(slot, flat)
    assert not layout.holds()


@pytest.mark.parametrize("as_ddp", [True, False])
def test_what_no_gradient_reaches_is_zero(as_ddp):
    layout = Layout(model(2, 3), 1, 100)
    flat = torch.ones(layout.numel)
    first, second = layout.slots
    layout.fill(flat, {first.name}, as_ddp=as_ddp)
    assert first.of(flat).tolist() == [1.0] * 3
    assert second.of(flat).tolist() == [0.0] * 2
    assert torch.signbit(second.of(flat)).tolist() == [not as_ddp] * 2


def test_buckets_are_taken_in_their_order_whatever_comes_first():
    layout = Layout(model(1, 1, 1), 1, bucket_bytes=1)
    first, second, third = layout.slots
    countdown = Countdown(layout)
    assert list(countdown.arrived(second)) == []
    assert list(countdown.arrived(first)) == [layout.buckets[0], layout.buckets[1]]
    assert list(countdown.rest()) == [layout.buckets[third.bucket]]
    assert list(countdown.rest()) == []


def test_frozen_parameters_are_left_out_and_tied_ones_count_once():
    made = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    made[0].weight.requires_grad_(False)
    made[2].weight = made[1].weight
    assert [slot.name for slot in Layout(made, 1, 1000).slots] == ["2.bias", "1.bias", "1.weight", "0.bias"]


@pytest.mark.parametrize(
    ("made", "listed"),
    [
        (nn.Linear(2, 2).half(), "torch.float16 on cpu"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "torch.float32 on cpu, torch.float64 on cpu"),
        (nn.ReLU(), "there are none"),
    ],
)
def test_other_types_are_refused(made, listed):
    with pytest.raises(UsageError) as raised:
        Layout(made, 1, 1000)
    assert raised.value.reason.endswith(f"on one device: {listed}")
    assert raised.value.remedy == "For mixed precision keep them float32 and pass Gradients(amp='bf16')."
