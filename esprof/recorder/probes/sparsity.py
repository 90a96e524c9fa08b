"""Measure products with the weights of the job's linear layers, dense and with two of each four neighbours zero (2:4)."""

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .agreement import filled
from .bench import Bench, Once

_LEAST_CAPABILITY = (8, 0)
_COLUMNS = [1 << power for power in range(8, 17, 2)]
"""Tokens of a batch."""
_MAX_WEIGHTS = 6
"""Sizes of weights that are measured, at most: the largest ones."""
_HALF_TYPES = {torch.float16: ("float16",), torch.bfloat16: ("bfloat16",), torch.float32: ("float16", "bfloat16")}
"""Types in which a job multiplies weights of a type: autocast converts those of 32 bits."""


class _Matrix(NamedTuple):
    dtype: str
    rows: int
    inner: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.rows}x{self.inner}"


def is_possible(bench: Bench) -> bool:
    """Whether the devices of all ranks multiply 2:4 matrices."""
    (lacking,) = bench.agreement.maxima(int(not _multiplies(bench.device)))
    return not lacking


def _multiplies(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


def products(bench: Bench) -> None:
    """Measure products with each weight, and with its transpose as in the backward pass, by floating-point operations; and
    the choice of zeros and packing of each weight, by bytes."""
    mine = {(dtype, *weight.shape): None for weight in _weights() for dtype in _HALF_TYPES.get(weight.dtype, ())}
    weights = [_Matrix(*one) for one in bench.agreement.union([list(one) for one in mine])]
    largest = sorted(weights, key=lambda one: -one.rows * one.inner)[:_MAX_WEIGHTS]
    if not largest:
        bench.left_out("2:4 weights", "the job has no torch.nn.Linear with weights of 16 or 32 bits")
    for number, weight in enumerate(largest):
        bench.use_share(1 / (len(largest) - number))
        transposed = weight._replace(rows=weight.inner, inner=weight.rows)
        for matrix in dict.fromkeys((weight, transposed)):
            _pair(bench, matrix)
        _sparsify(bench, weight)


def _weights() -> list[Tensor]:
    """The weights of the linear layers of this process."""
    # By type: asking an object for its class may run code of the job.
    layers = [one for one in gc.get_objects() if issubclass(type(one), nn.Linear)]
    return [layer.weight for layer in layers if isinstance(layer.weight, Tensor) and not is_lazy(layer.weight)]


def _pair(bench: Bench, matrix: _Matrix) -> None:
    dense = _of_two_in_four(matrix, bench.device)
    sparse = _on_all_ranks(bench, matrix, lambda: torch.sparse.to_sparse_semi_structured(dense))
    if sparse is None:
        return
    per_column = 2 * matrix.rows * matrix.inner
    sizes = [per_column * columns for columns in _COLUMNS if 4 * columns * matrix.inner <= bench.max_bytes]
    for kind, left in (("dense", dense), ("sparse", sparse)):

        def prepare(flop: int, left: Tensor = left) -> Once:
            columns = flop // per_column
            right = filled(matrix.inner * columns, bench.device, 1.0, dense.dtype).view(matrix.inner, columns)
            return lambda: torch.mm(left, right)

        with torch.no_grad():
            bench.sweep(bench.mine(kind, str(matrix), "flop"), sizes, prepare)


def _sparsify(bench: Bench, weight: _Matrix) -> None:
    dense = _of_two_in_four(weight, bench.device)
    kind = _on_all_ranks(bench, weight, lambda: type(torch.sparse.to_sparse_semi_structured(dense)))
    if kind is None or _on_all_ranks(bench, weight, lambda: kind.prune_dense_static_sort(dense)) is None:
        return
    what = bench.mine("sparsify", str(weight), "bytes")
    bench.sweep(what, [dense.nbytes], lambda _: lambda: kind.prune_dense_static_sort(dense))


def _on_all_ranks(bench: Bench, matrix: _Matrix, make: Callable[[], Any]) -> Any:
    """What `make` returns; None if it fails on a rank, as for sizes that a library does not support."""
    made, reasons = None, list[str]()
    try:
        made = make()
    except (RuntimeError, NotImplementedError) as refusal:
        reasons = [str(refusal).splitlines()[0]]
    refusals = bench.agreement.union(reasons)
    if refusals:
        bench.left_out(f"2:4 {matrix}", refusals[0])
        return None
    return made


def _of_two_in_four(matrix: _Matrix, device: torch.device) -> Tensor:
    """A matrix of this size with the numbers 0, 0, 1, 1 in each four neighbours of a row."""
    four = torch.tensor([0, 0, 1, 1], dtype=getattr(torch, matrix.dtype), device=device)
    return four.repeat(matrix.rows, -(-matrix.inner // 4))[:, : matrix.inner].contiguous()
