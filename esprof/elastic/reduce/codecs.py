"""How an EST's gradient is written for the wire: a registry of codecs, each with its exact size and its state.

A codec works on one parameter's gradient of one EST, as it would on one rank of plain data parallelism; what it loses
does not depend on where the EST runs. Its state belongs to the pair (EST, parameter name) and moves with the EST.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from esprof.errors import UsageError

State = dict[str, Tensor]
"""What a codec keeps for one EST and parameter: tensors of a fixed shape, which go into checkpoints."""


class Codec(Protocol):
    """Encodes a gradient (1-D, float32 or float64) as bytes (1-D, uint8, same device), and decodes them again.

    Both must be deterministic, and `decode` must not need the state: every rank decodes every EST's bytes.
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


class Cast:
    """A narrower float: round to nearest, and infinite where the type cannot hold it."""

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


class TopK:
    """The largest entries by magnitude, with error feedback: what is not sent is added to the next gradient.

    Sparsified SGD with memory (Stich et al., NeurIPS 2018, algorithm 1). At least one entry is sent, if there is one.
    """

    has_state = True

    def __init__(self, ratio: float) -> None:
        if not 0 < ratio <= 1:
            raise UsageError(f"top-k sends a share between 0 and 1 of the entries, not {ratio:g}")
        self.spec = f"topk:{ratio:g}"
        self._ratio = ratio

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        residual = state.setdefault("residual", torch.zeros_like(gradient))
        residual.add_(gradient)
        index = residual.abs().topk(self._count(gradient.numel())).indices.sort().values
        value = residual[index].to(torch.float32)
        residual[index] -= value.to(residual.dtype)
        return torch.cat([index.to(torch.int32).view(torch.uint8), value.view(torch.uint8)])

    def decode(self, wire: Tensor, out: Tensor) -> None:
        half = wire.numel() // 2
        out.zero_()
        out[typed(wire[:half], torch.int32).long()] = typed(wire[half:], torch.float32).to(out.dtype)

    def wire_bytes(self, numel: int) -> int:
        return 8 * self._count(numel)

    def _count(self, numel: int) -> int:
        return min(numel, max(1, math.floor(numel * self._ratio)))


_FACTORIES: dict[str, Callable[[str], Codec]] = {
    "fp16": lambda argument: Cast(_bare("fp16", argument), torch.float16),
    "bf16": lambda argument: Cast(_bare("bf16", argument), torch.bfloat16),
    "topk": lambda ratio: TopK(_number("topk", ratio)),
}
_EXAMPLES = {"topk": "0.01"}
"""Name of a codec -> a usual argument, where it needs one."""


def register_codec(name: str, factory: Callable[[str], Codec], example: str = "") -> None:
    """Make `name` or `name:argument` a codec's text; `factory` gets the argument, "" where there is none.

    `example` is a usual argument, with which `esprof probe` measures what the codec costs.
    """
    _FACTORIES[name] = factory
    _EXAMPLES[name] = example


def examples() -> list[str]:
    """A text of each codec that is known, with a usual argument."""
    arguments = [(name, _EXAMPLES.get(name, "")) for name in _FACTORIES]
    return [f"{name}:{argument}" if argument else name for name, argument in arguments]


def codec(spec: str) -> Codec | None:
    """The codec of a text such as `fp16` or `topk:0.1`; None for `none`. Raises UsageError for an unknown one."""
    name, _, argument = spec.partition(":")
    if spec == "none":
        return None
    if name not in _FACTORIES:
        raise UsageError(f"no codec {name!r}; known are none, {', '.join(sorted(_FACTORIES))}")
    return _FACTORIES[name](argument)


def check_codec(spec: str, *, scaled: bool) -> None:
    """Raise UsageError for an unknown codec, or one that gradients of a `scaled` loss would not suit."""
    made = codec(spec)
    if scaled and made is not None and made.has_state:
        raise UsageError(f"codec {spec} keeps what it did not send, which fp16's loss scale would falsify: use bf16")


def typed(wire: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes (1-D, uint8) as numbers of `dtype`; a copy where they do not begin on a multiple of the number's size."""
    aligned = wire.storage_offset() % dtype.itemsize == 0
    return (wire if aligned else wire.clone()).view(dtype)


def _bare(name: str, argument: str) -> str:
    if argument:
        raise UsageError(f"codec {name} takes no argument, such as {argument!r}")
    return name


def _number(name: str, argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise UsageError(f"codec {name} takes a number, as in {name}:0.1, not {argument!r}") from None
