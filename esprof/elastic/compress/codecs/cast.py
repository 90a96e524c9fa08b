"""A narrower float."""

from collections.abc import Iterator

import torch
from torch import Tensor

from esprof.elastic.compress.codecs.codec import State, typed


class Cast:
    """Casts to a narrower float: rounds to nearest; overflow becomes infinite."""

    has_state = False

    def __init__(self, spec: str, dtype: torch.dtype) -> None:
        self.spec = spec
        self._dtype = dtype

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        return gradient.to(self._dtype).view(torch.uint8)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        out.copy_(typed(wire, self._dtype))

    def wire_bytes(self, numel: int) -> int:
        return numel * self._dtype.itemsize

    def reduce(self, gradient: Tensor, state: State, world: int) -> Iterator[Tensor]:
        # Divide first, so that the sum stays in the range of the type.
        narrow = (gradient * (1 / world)).to(self._dtype)
        yield narrow
        gradient.copy_(narrow)
