"""Floating-point operations and memory traffic of operations, from the shapes of their inputs.

Operations are counted as in torch.utils.flop_counter: a multiply-add as two, attention without regard to masks.
"""

import re
from collections.abc import Callable
from math import prod

import msgspec

Dims = list[list[int]]
"""Sizes of each argument; empty for arguments that are no tensor."""


def dims_of(shapes: str | None) -> Dims:
    """The shapes of a trace (`[[8, 4], [], [4, 2]]`); lists of tensors count as no tensor. Empty if they cannot be read."""
    try:
        arguments = msgspec.json.decode(shapes or "[]", type=list)
    except msgspec.DecodeError:
        return []
    return [one if isinstance(one, list) and all(isinstance(size, int) for size in one) else [] for one in arguments]


FIRST_MATRIX = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Operations that multiply two matrices -> index of the first matrix among their arguments."""


def _product(first: int) -> Callable[[Dims], float | None]:
    """Operations of a multiplication whose matrices, or batches of matrices, are the arguments from index `first`."""

    def count(dims: Dims) -> float | None:
        sizes = product_sizes(dims[first : first + 2])
        return 2.0 * prod(sizes) if sizes else None

    return count


def product_sizes(operands: Dims) -> tuple[int, int, int, int] | None:
    """(batch, rows, columns, inner size) of a multiplication; None where its shapes do not fit together."""
    if len(operands) != 2 or len(operands[0]) not in (2, 3) or len(operands[0]) != len(operands[1]):
        return None
    left, right = operands
    if left[-1] != right[-2]:
        return None
    return left[0] if len(left) == 3 else 1, left[-2], right[-1], left[-1]


def _convolution_backward(dims: Dims) -> float | None:
    """Both gradients, each as many operations as the forward pass: one per element of the larger side and of a filter."""
    if len(dims) < 3 or len(dims[0]) < 3 or len(dims[2]) != len(dims[0]):
        return None
    gradient, given, weight = dims[:3]
    # A transposed convolution has its input channels first: each element of the input meets a whole filter.
    return 2 * 2.0 * prod(gradient if gradient[1] == weight[0] else given) * prod(weight[1:])


def _cudnn_convolution_backward(dims: Dims) -> float | None:
    return _convolution_backward([dims[1], dims[0], dims[2]]) if len(dims) >= 3 else None


def _attention(first: int, inner: int, outer: int) -> Callable[[Dims], float | None]:
    """`inner` products over the size of a head of the queries, and `outer` over that of the values; arguments from `first`
    are queries, keys and values, each [batch, heads, length, size]."""

    def count(dims: Dims) -> float | None:
        of = dims[first : first + 3]
        if len(of) < 3 or any(len(one) != 4 for one in of):
            return None
        (batch, heads, rows, size), (_, _, columns, _), (*_, value_size) = of
        return 2.0 * batch * heads * rows * columns * (inner * size + outer * value_size)

    return count


_FUSED = ("flash", "efficient", "cudnn")
COUNTED: dict[str, Callable[[Dims], float | None]] = {
    **{name: _product(first) for name, first in FIRST_MATRIX.items()},
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward": _cudnn_convolution_backward,
    **{f"aten::_scaled_dot_product_{kind}_attention": _attention(0, 1, 1) for kind in _FUSED},
    # The backward pass computes the scores again: five products in place of two.
    **{f"aten::_scaled_dot_product_{kind}_attention_backward": _attention(1, 3, 2) for kind in _FUSED},
}
"""Operation -> its floating-point operations from the shapes of its arguments; None where they do not fit."""

CONVOLUTION = "aten::_convolution"
"""Its output's size depends on strides, which shapes do not tell: see `convolution`."""


def convolution(dims: Dims, output: list[int]) -> float:
    """Operations of a convolution of input and weight (the first of `dims`) with this output."""
    weight = dims[1]
    return 2.0 * prod(output if output[1] == weight[0] else dims[0]) * prod(weight[1:])


_POINTWISE = re.compile(
    r"aten::(add|sub|mul|div|copy|relu|gelu|silu|sigmoid|tanh|threshold_backward|gelu_backward|silu_backward|clamp\w*"
    r"|addcmul|addcdiv|lerp|pow|sqrt|rsqrt|exp|neg|abs|leaky_relu\w*|hardtanh\w*|native_dropout)_?$"
)
"""Matches operations that read each input once and write an output of their shape."""

_ONCE = re.compile(r"aten::(fill_|zero_|sum|mean|amax|max|native_layer_norm|_softmax|_log_softmax|norm|\w*batch_norm)$")
"""Matches operations that read or write at least their first argument."""

_BYTES = ((r"double|int64|\blong\b", 8), (r"BFloat16|Half|half|bf16|fp16|f16", 2), (r"float|f32|sgemm", 4))


def element_bytes(kernel: str) -> int | None:
    """Bytes of an element by the types in a kernel's name; None without any. The narrowest of several is a lower bound."""
    found = [size for pattern, size in _BYTES if re.search(pattern, kernel)]
    return min(found, default=None)


def least_elements(operation: str, dims: Dims) -> float | None:
    """Elements that an operation reads and writes at least, each once; None for operations that are not known."""
    sizes = [float(prod(one)) for one in dims if one]
    if not sizes:
        return None
    if operation in FIRST_MATRIX:
        first = FIRST_MATRIX[operation]
        product = product_sizes(dims[first : first + 2])
        return None if product is None else _product_elements(*product)
    if _POINTWISE.fullmatch(operation):
        # `copy_` does not read its output, which is its first argument.
        return 2 * sizes[0] if operation == "aten::copy_" else sum(sizes) + max(sizes)
    if operation.startswith("triton_poi_"):
        return sum(sizes)  # The arguments of a compiled kernel include its outputs.
    return sizes[0] if _ONCE.fullmatch(operation) else None


def _product_elements(batch: int, rows: int, columns: int, inner: int) -> float:
    return float(batch) * (rows * inner + inner * columns + rows * columns)
