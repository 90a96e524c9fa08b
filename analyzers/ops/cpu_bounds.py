"""What bounds the operations of a rank that computes on CPUs: arithmetic, memory, or what a call costs."""

import re
from typing import NamedTuple

import numpy as np

from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.core.types import NS_PER_US, Ns

MAX_SMALL_NS: Ns = 50 * NS_PER_US
"""Longest own time of an operation that counts as bound by its call, which takes PyTorch some microseconds."""

_PRODUCT = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|addbmm|mv|dot|mkldnn_\w+|_?convolution\w*|_?(slow|thnn)_conv\w*|_scaled_dot_product_\w+)"
)
"""Matches operations that multiply matrices, convolve or attend: each number that they read is used many times."""


class CpuBounds(NamedTuple):
    """Share of the own time of a rank's operations on tensors in steady-state steps that each kind has; they sum to 1."""

    products: float
    """Products of matrices, convolutions and attention."""
    others: float
    """Others of more than `MAX_SMALL_NS`, which mostly move data."""
    small: float


def cpu_bounds(rank_calls: GpuCalls) -> CpuBounds | None:
    """The shares; None without an operation."""
    calls = rank_calls.calls
    is_tensor = np.array([key.kind == "op" and key.name.startswith("aten::") for key in calls.keys], bool)
    is_product = np.array([bool(_PRODUCT.fullmatch(key.name)) for key in calls.keys], bool)
    if not is_tensor.any():
        return None
    own = np.where(is_tensor[calls.key], calls.own_ns, 0)
    products = float(own[is_product[calls.key]].sum())
    small = float(own[~is_product[calls.key] & (own <= MAX_SMALL_NS)].sum())
    total = float(own.sum())
    return CpuBounds(products / total, (total - products - small) / total, small / total) if total else None
