"""A gradient as the product of two thin matrices."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from esprof.core.errors import UsageError
from esprof.elastic.compress.codecs.codec import State, typed, with_residual


class PowerSGD:
    """One step of subspace iteration from the last gradient's factor, with error feedback (Vogels et al., NeurIPS 2019,
    algorithms 1 and 2). The entries fill a square, as in torch's `batched_powerSGD_hook`, not the parameters'
    shapes."""

    has_state = True

    def __init__(self, rank: int) -> None:
        if rank < 1:
            raise UsageError(f"PowerSGD needs a rank of at least 1, not {rank}")
        self.spec = f"powersgd:{rank}"
        self._rank = rank

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        matrix, q = self._square_and_factor(gradient, state)
        p = _orthonormal(matrix @ q)
        state["q"] = matrix.T @ p
        self._sent(state, p)
        return torch.cat([p.ravel(), state["q"].ravel()]).to(torch.float32).view(torch.uint8)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        p, q = typed(wire, torch.float32).view(2, -1, self._columns(len(out)))
        out.copy_((p @ q.T).ravel()[: len(out)])

    def wire_bytes(self, numel: int) -> int:
        return 2 * 4 * _side(numel) * self._columns(numel)

    def reduce(self, gradient: Tensor, state: State, world: int) -> Iterator[Tensor]:
        matrix, q = self._square_and_factor(gradient, state)
        p = matrix @ q / world
        yield p
        p = _orthonormal(p)
        q = matrix.T @ p / world
        yield q
        state["q"] = q
        # The same product is subtracted from each rank's residual: the mean of the residuals is the remaining error.
        gradient.copy_(self._sent(state, p))

    def _columns(self, numel: int) -> int:
        return min(self._rank, _side(numel))

    def _square_and_factor(self, gradient: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """(gradient plus residual as a square matrix, initial factor)."""
        residual, side = with_residual(gradient, state), _side(len(gradient))
        if "q" not in state:
            chance = torch.randn(side, self._columns(len(gradient)), generator=torch.Generator().manual_seed(side))
            state["q"] = chance.to(gradient)
        square = torch.nn.functional.pad(residual, (0, side * side - len(residual)))
        return square.view(side, side), state["q"]

    def _sent(self, state: State, p: Tensor) -> Tensor:
        """The product of `p` and the factor of the state, subtracted from the residual."""
        product = (p @ state["q"].T).ravel()[: len(state["residual"])]
        state["residual"] -= product
        return product


def _side(numel: int) -> int:
    return math.isqrt(max(0, numel - 1)) + 1 if numel else 0


def _orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis whose span includes that of the columns."""
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis
