"""Which operations of a backward pass compute gradients of weights."""

import numpy as np
import pytest
import torch
from torch.profiler import profile

from esprof.replay.whatif.gradients.weights import _LINEAR, weights_ns

NODE = "autograd::engine::evaluate_function: "


def found(*calls, has_input_gradient=True):
    """(time for weights, whether it is known) of one node; calls are (name, time) in order."""
    names, times = [name for name, _ in calls], np.array([time for _, time in calls])
    node = np.zeros(len(calls), np.int64)
    weights, is_known = weights_ns(names, node, times, np.full(len(calls), has_input_gradient))
    assert not weights[1:].any()
    return int(weights[0]), is_known


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([("torch::autograd::AccumulateGrad", 9)], 9),
        ([("EmbeddingBackward0", 9), ("aten::embedding_dense_backward", 8)], 9),
        ([("GeluBackward0", 9)], 0),
        ([("BmmBackward0", 9), ("aten::bmm", 4), ("aten::bmm", 4)], 0),
        ([("AddmmBackward0", 19), ("aten::mm", 4), ("aten::t", 1), ("aten::mm", 5), ("aten::sum", 2)], 7),
        ([("MmBackward0", 19), ("aten::mm", 5), ("aten::mm", 4)], 5),
        ([("MmBackward0", 19), ("aten::mm", 4)], 0),
    ],
)
def test_time_of_a_node_for_weights(calls, expected):
    assert found((NODE + calls[0][0], calls[0][1]), *calls[1:]) == (expected, True)


def test_the_first_layer_multiplies_for_its_weights_only():
    calls = (NODE + "AddmmBackward0", 19), ("aten::mm", 4), ("aten::sum", 2)
    assert found(*calls, has_input_gradient=False) == (6, True)


@pytest.mark.parametrize(
    "calls",
    [
        [("ConvolutionBackward0", 9), ("aten::convolution_backward", 8)],
        [("OwnBackward", 9), ("aten::mm", 4), ("aten::mm", 4)],
        [("AddmmBackward0", 9)],
    ],
)
def test_other_nodes_that_multiply_are_unknown(calls):
    assert not found((NODE + calls[0][0], calls[0][1]), *calls[1:])[1]


@pytest.mark.parametrize("bias", [True, False])
def test_torch_multiplies_in_this_order(bias):
    layer = torch.nn.Linear(2, 3, bias=bias)
    with profile(record_shapes=True) as recorded:
        layer(torch.zeros(5, 2, requires_grad=True)).sum().backward()
    events = sorted(recorded.events(), key=lambda event: event.time_range.start)
    products = [event.input_shapes for event in events if event.name == "aten::mm"][-2:]
    (weights,) = (at for at, (left, _) in enumerate(products) if left[1] == 5)  # a sum over the samples
    node = next(
        event.name.removeprefix(NODE) for event in events if event.name.startswith(NODE) and "mm" in event.name.lower()
    )
    assert weights == range(2)[_LINEAR[node]]
