"""What a codec is: how a gradient is written for the wire, with its exact size and its state."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

State = dict[str, Tensor]
"""What a codec keeps from one gradient to the next: tensors of a fixed shape, which go into checkpoints. `residual` is what
was not sent so far, and `step` counts the gradients, where a codec has these."""


class Codec(Protocol):
    """Encodes a gradient (1-D, float32 or float64) as bytes (1-D, uint8, same device), and decodes them again.

    Both must be deterministic, and `decode` must not need the state: every rank decodes all others' bytes. For an elastic
    job it works on one parameter's gradient of one EST, as it would on one rank of plain data parallelism, so that what it
    loses does not depend on where the EST runs; its state belongs to the pair (EST, parameter name) and moves with the EST.
    """

    spec: str
    """The text from which `codec()` makes this codec."""

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        """Exactly `wire_bytes(gradient.numel())` bytes; `state` is changed in place, and empty at first."""

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Write the gradient that `wire` stands for into `out`."""

    def wire_bytes(self, numel: int) -> int: ...

    @property
    def has_state(self) -> bool: ...


@runtime_checkable
class Summable(Codec, Protocol):
    """A codec whose encoded gradients can be added up, so that all-reduces are enough."""

    def reduce(self, gradient: Tensor, state: State, world: int) -> Iterator[Tensor]:
        """Yield one tensor after the other that is to be summed over all `world` ranks, in place; in the end `gradient`
        holds the mean of theirs."""


def typed(wire: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes (1-D, uint8) as numbers of `dtype`; a copy where they do not begin on a multiple of the number's size."""
    aligned = wire.storage_offset() % dtype.itemsize == 0
    return (wire if aligned else wire.clone()).view(dtype)


def with_residual(gradient: Tensor, state: State) -> Tensor:
    """The gradient plus what was not sent so far: the residual itself, from which is to be taken what is sent now."""
    if "residual" not in state:
        state["residual"] = torch.zeros_like(gradient)
    return state["residual"].add_(gradient)


def counted(state: State) -> int:
    """The number of this gradient, from 0 on."""
    step = state.setdefault("step", torch.zeros((), dtype=torch.int64))
    step += 1
    return int(step) - 1
