"""The part of the backward pass that computes gradients of weights, by the names of its nodes and operations."""

import numpy as np

from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE, GRADIENT

_OF_WEIGHTS = {GRADIENT, "EmbeddingBackward0"}
"""Nodes that work for weights only."""

_PRODUCT, _SUM = "aten::mm", "aten::sum"

_LINEAR = {"AddmmBackward0": -1, "MmBackward0": 0}
"""Nodes of linear layers -> which of their two products, in order of time, is the gradient of the weights."""

_MULTIPLIES = {_PRODUCT, "aten::addmm", "aten::convolution_backward", "aten::linear_backward"}
"""Operations that may compute gradients of weights. Those of `aten::bmm` have none."""


def weights_ns(
    names: list[str], node: np.ndarray, times_ns: np.ndarray, has_input_gradient: np.ndarray
) -> tuple[np.ndarray, bool]:
    """(time for weights of each call that is a node, else 0, int64[calls]; whether it is known of all nodes).

    `names` and `times_ns` are of each call, outer ones first; `node` is the node that it is in or itself, -1 for none. A
    linear layer whose input needs a gradient (`has_input_gradient`, of each node) multiplies for it; if it multiplies once,
    its weights need none. Weights of norms count as inputs.
    """
    found, is_known = np.zeros(len(names), np.int64), True
    products: dict[int, list[int]] = {}
    for call in np.flatnonzero(node >= 0).tolist():
        at, name = int(node[call]), names[call]
        kind = names[at].removeprefix(AUTOGRAD_NODE)
        if call == at and kind in _OF_WEIGHTS:
            found[at] = times_ns[at]
        elif call == at and kind in _LINEAR:
            products[at] = []
        elif name == _PRODUCT and kind in _LINEAR:
            products[at].append(call)
        elif name == _SUM and kind in _LINEAR:
            found[at] += times_ns[call]  # the gradient of the bias
        elif name in _MULTIPLIES:
            is_known = False
    for at, calls in products.items():
        if len(calls) == 2:
            found[at] += times_ns[calls[_LINEAR[names[at].removeprefix(AUTOGRAD_NODE)]]]
        elif len(calls) == 1:
            found[at] += 0 if has_input_gradient[at] else times_ns[calls[0]]
        else:
            is_known = False
    return found, is_known
