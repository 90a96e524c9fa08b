"""What bounds the operations of a rank that computes on CPUs: arithmetic, memory, or what a call costs."""

import re
from typing import NamedTuple

import numpy as np

from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.replay.whatif.terms.small_operations import MAX_OPERATION_NS

_PRODUCT = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|addbmm|mv|dot|mkldnn_\w+|_?convolution\w*|_?(slow|thnn)_conv\w*|_scaled_dot_product_\w+)"
)
"""Matches operations that multiply matrices, convolve or attend: each number that they read is used many times."""


class CpuBounds(NamedTuple):
    """Share of the own time of a rank's operations on tensors in steady-state steps that each kind has; they sum to 1."""

    products: float
    """Products of matrices, convolutions and attention."""
    others: float
    """Other long ones, which mostly move data."""
    small: float
    """Others of at most `MAX_OPERATION_NS`, which take little longer than their calls."""


def cpu_bounds(rank_calls: GpuCalls) -> CpuBounds | None:
    """The shares; None without an operation."""
    calls = rank_calls.calls
    is_product = calls.of(lambda key: bool(_PRODUCT.fullmatch(key.name)))
    own = np.where(calls.of(lambda key: key.kind == "op" and key.name.startswith("aten::")), calls.own_ns, 0)
    products = float(own[is_product].sum())
    small = float(own[~is_product & (own <= MAX_OPERATION_NS)].sum())
    total = float(own.sum())
    return CpuBounds(products / total, (total - products - small) / total, small / total) if total else None
