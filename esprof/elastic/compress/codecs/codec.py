"""The codec protocol: encoding of a gradient for communication, its size and its state."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

State = dict[str, Tensor]
"""State of a codec between gradients: tensors of fixed shape, saved in checkpoints. If present, `residual` is the part
of the gradients that was not sent yet, and `step` counts the gradients."""


class Codec(Protocol):
    """Encodes a gradient (1-D, float32 or float64) as bytes (1-D, uint8, same device), and decodes them again.

    Both must be deterministic, and `decode` must not need the state: every rank decodes all others' bytes. In an
    elastic job it encodes one parameter's gradient of one EST, as on one rank of plain data parallelism, so that its
    error does not depend on where the EST runs; its state belongs to the pair (EST, parameter name) and moves with the EST.
    """

    spec: str
    """The text from which `codec()` makes this codec."""

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        """Return exactly `wire_bytes(gradient.numel())` bytes; `state` is initially empty and updated in place."""

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Write the decoded gradient to `out`."""

    def wire_bytes(self, numel: int) -> int: ...

    @property
    def has_state(self) -> bool: ...


@runtime_checkable
class Summable(Codec, Protocol):
    """A codec whose encoded gradients can be summed by all-reduces."""

    def reduce(self, gradient: Tensor, state: State, world: int) -> Iterator[Tensor]:
        """Yield tensors that the caller sums over all `world` ranks in place; finally `gradient` holds the mean over
        the ranks."""


def typed(wire: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes (1-D, uint8) as numbers of `dtype`; a copy where they do not begin on a multiple of the number's size."""
    aligned = wire.storage_offset() % dtype.itemsize == 0
    return (wire if aligned else wire.clone()).view(dtype)


def with_residual(gradient: Tensor, state: State) -> Tensor:
    """Add the gradient to the residual, and return the residual. The caller subtracts what it sends."""
    if "residual" not in state:
        state["residual"] = torch.zeros_like(gradient)
    return state["residual"].add_(gradient)


def counted(state: State) -> int:
    """The number of this gradient, from 0 on."""
    step = state.setdefault("step", torch.zeros((), dtype=torch.int64))
    step += 1
    return int(step) - 1
