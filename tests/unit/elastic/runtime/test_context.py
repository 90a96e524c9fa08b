"""What belongs to an EST survives the way through tensors and between ranks, bit for bit."""

import random

import numpy as np
import pytest
import torch

from esprof.elastic.runtime.context import EstContext, broadcast_context
from esprof.elastic.runtime.rng import RngState, seed_all
from tests.cases.elastic import on_threads

CPU = torch.device("cpu")


def draws():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()


@pytest.fixture(autouse=True)
def _leave_generators_alone():
    before = RngState.capture(CPU)
    yield
    before.restore(CPU)


@pytest.mark.parametrize("drawn_before", [0, 1, 700])
def test_generators_go_on_where_they_were(drawn_before):
    seed_all(3)
    for _ in range(drawn_before):
        draws()
    tensors = RngState.capture(CPU).tensors()
    expected = [draws() for _ in range(3)]
    seed_all(99)
    RngState.of_tensors(tensors).restore(CPU)
    assert [draws() for _ in range(3)] == expected


@pytest.mark.parametrize("source", [0, 2])
def test_all_ranks_get_the_context_that_one_has(source):
    seed_all(11)
    draws()  # A Gaussian is left over in Python's and NumPy's generators.
    state = {"residual": torch.tensor([1.5, -0.0, float("inf")]), "count": torch.tensor(4)}
    context = EstContext(RngState.capture(CPU), {"layer.0/odd.weight": state, "bias": {}})
    expected = [draws() for _ in range(3)]

    def body(transport):
        return broadcast_context(context if transport.rank == source else None, source, transport, CPU)

    for got in on_threads(3, body):
        got.rng.restore(CPU)
        assert [draws() for _ in range(3)] == expected
        assert got.codec["layer.0/odd.weight"].keys() == state.keys()
        for name, tensor in state.items():
            assert torch.equal(got.codec["layer.0/odd.weight"][name], tensor)
        assert torch.signbit(got.codec["layer.0/odd.weight"]["residual"][1])
