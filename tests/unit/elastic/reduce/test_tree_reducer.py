"""What reducers make of given gradients, and how many bytes they take for it; ranks are threads."""

import pytest
import torch
from torch import nn

from esprof.core.assignment import Assignment
from esprof.elastic.compress.codecs.registry import codec
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.naive import NaiveReducer
from esprof.elastic.reduce.tree_reducer import TreeReducer
from tests.cases.elastic import on_threads

N = 4
SIZES = (96, 64, 32)
BYTES = 4 * sum(SIZES)


def model():
    made = nn.Module()
    for number, size in enumerate(SIZES):
        made.register_parameter(f"p{number}", nn.Parameter(torch.zeros(size)))
    return made


def gradients(layout, est):
    """Of wildly different size, so that each order of addition has a result of its own."""
    noise = torch.Generator().manual_seed(est)
    magnitude = torch.randint(-12, 12, (layout.numel,), generator=noise)
    return torch.randn(layout.numel, generator=noise) * 2.0**magnitude


def reduced(kind, parts, spec="none", *, in_place=False):
    """The mean on each rank, and the bytes that it sent. The last EST's gradients come one by one, the last ones first. With
    `in_place` a gradient is added to the sum of earlier ones where the reducer allows that."""

    def body(transport):
        layout = Layout(model(), transport.world, 400)
        reducer = kind(layout, transport, N)
        reducer.begin(Assignment.of(parts), codec(spec), {est: {} for est in range(N)})
        mine = parts[transport.rank]
        for est in mine:
            earlier = reducer.sum_before(est) if in_place else None
            if earlier is None:
                flat = reducer.buffer().copy_(gradients(layout, est))
            else:
                flat = earlier.add_(gradients(layout, est))
            if est != mine[-1]:
                reducer.fold(est, flat)
            else:
                reducer.send_last(est, flat)
                for slot in layout.slots[:2]:
                    reducer.ready(slot)
        mean = reducer.finish()
        return torch.cat([slot.of(mean) for slot in layout.slots]), reducer.bytes_sent

    return on_threads(len(parts), body)


def by_hand(spec="none"):
    """((0 + 1) + (2 + 3)) / 4, of what the codec leaves of each."""
    layout = Layout(model(), 1, 400)
    leaves = []
    for est in range(N):
        flat = gradients(layout, est)
        parts = [slot.of(flat).clone() for slot in layout.slots]
        made = codec(spec)
        if made is not None:
            for part in parts:
                made.decode(made.encode(part.clone(), {}), part)
        leaves.append(torch.cat(parts))
    return ((leaves[0] + leaves[1]) + (leaves[2] + leaves[3])) / N


PARTS = [
    [[0, 1, 2, 3]],
    [[0, 1], [2, 3]],
    [[0, 2], [1, 3]],
    [[3], [0, 1, 2]],
    [[], [0, 1, 2, 3]],
    [[3], [2], [1], [0]],
]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("spec", ["none", "fp16", "topk:0.05"])
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_the_tree_adds_in_its_order(parts, spec, in_place):
    for mean, _ in reduced(TreeReducer, parts, spec, in_place=in_place):
        assert torch.equal(mean, by_hand(spec))


def test_a_plain_all_reduce_adds_in_another():
    for mean, _ in reduced(NaiveReducer, PARTS[2]):
        assert torch.allclose(mean, by_hand(), rtol=1e-3, atol=1e-3)
        assert not torch.equal(mean, by_hand())


def all_reduce_bytes(world):
    """What each rank of a ring sends."""
    return 2 * BYTES * (world - 1) // world


@pytest.mark.parametrize("parts", [PARTS[1], PARTS[5]], ids=str)
def test_aligned_ranges_take_the_bytes_of_an_all_reduce(parts):
    assert [sent for _, sent in reduced(TreeReducer, parts)] == [all_reduce_bytes(len(parts))] * len(parts)


def test_each_further_subtree_is_sent_too():
    assert [sent for _, sent in reduced(TreeReducer, PARTS[2])] == [BYTES * 2 // 2 + BYTES // 2] * 2
    assert [sent for _, sent in reduced(TreeReducer, PARTS[4])] == [BYTES // 2, BYTES // 2 + BYTES // 2]


def test_few_encoded_bytes_are_gathered():
    made = codec("topk:0.05")
    leaf = sum(made.wire_bytes(size) for size in SIZES)
    assert [sent for _, sent in reduced(TreeReducer, PARTS[2], "topk:0.05")] == [2 * leaf] * 2


class Noting:
    """Passes transfers on, and notes which were started and waited for."""

    def __init__(self, transport):
        self.rank, self.world, self.notes = transport.rank, transport.world, []
        self._transport = transport

    def exchange(self, *arguments):
        self.notes.append("exchange")
        return self._transport.exchange(*arguments)

    def share(self, whole):
        self.notes.append("share")
        return self._transport.share(whole)


def transfers(parts, arrival):
    """The transfers that each rank starts before the end of its last backward pass and in all; slots arrive in this order on
    rank 0, and in the model's on the others."""

    def body(transport):
        noting = Noting(transport)
        layout = Layout(model(), transport.world, 4)
        reducer = TreeReducer(layout, noting, N)
        reducer.begin(Assignment.of(parts), None, {})
        for est in parts[transport.rank]:
            flat = reducer.buffer()
            flat.copy_(gradients(layout, est))
            reducer.send_last(est, flat)
        if parts[transport.rank]:
            for place in arrival if transport.rank == 0 else range(len(layout.slots)):
                reducer.ready(layout.slots[place])
        beside = len(noting.notes)
        reducer.finish()
        return noting.notes[:beside], noting.notes

    return on_threads(len(parts), body)


IN_TURN = ["exchange", "exchange", "share", "exchange", "share", "share"]


def test_a_bucket_is_shared_while_later_gradients_are_computed():
    for beside, whole in transfers(PARTS[5], [0, 1, 2]):
        assert beside == IN_TURN[:5]
        assert whole == IN_TURN


def test_transfers_are_started_in_one_order_whenever_gradients_come():
    for _, whole in transfers(PARTS[5], [2, 0, 1]):
        assert whole == IN_TURN
