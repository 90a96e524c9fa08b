"""Measure how long the elastic runtime's codecs encode and decode gradients, alone and during a backward pass."""

from typing import Any

import torch
from torch import Tensor

from . import backward
from .agreement import filled
from .bench import Bench, Once

_SIZES = [1 << power for power in range(10, 28)]
_SIZES_DURING_PASS = [1 << 20]
_ELEMENT_BYTES = 4


def registered(bench: Bench) -> dict[str, Any]:
    """Spec -> codec: one of each kind that the elastic runtime of any rank registers. Empty if a rank's Python cannot import
    esprof."""
    try:
        from esprof.elastic.compress.codecs.registry import codec, examples
    except ImportError as missing:
        bench.agreement.union([])
        bench.agreement.maxima(1)
        bench.left_out("codecs", f"the job's Python cannot import esprof ({missing})")
        return {}
    specs = bench.agreement.union(examples())
    (some_lack,) = bench.agreement.maxima(0)
    # All ranks measure the same codecs.
    return {} if some_lack else {spec: codec(spec) for spec in specs}


def alone(bench: Bench, codecs: dict[str, Any], wanted: list[int]) -> None:
    """Measure encoding and decoding without concurrent work, by size of the gradient in bytes."""
    for number, (spec, coder) in enumerate(codecs.items()):
        for later, kind in ((0.5, "encode"), (0.0, "decode")):
            bench.use_share(1 / (len(codecs) - number + later))
            bench.sweep(
                bench.mine(kind, spec, "bytes"),
                _SIZES,
                lambda size, kind=kind, coder=coder: _once(kind, coder, size, bench),  # type: ignore[misc]
                wanted=wanted,
            )


def during_backward(bench: Bench, codecs: dict[str, Any], passes: backward.RepeatedBackward) -> None:
    """Measure encoding and decoding during backward passes, and those passes."""
    for number, (spec, coder) in enumerate(codecs.items()):
        bench.use_share(1 / (len(codecs) - number))
        for kind in ("encode", "decode"):
            what = bench.mine(kind, spec, "bytes", beside="backward")
            for size in _SIZES_DURING_PASS:
                backward.concurrent(bench, passes, f"{kind} {spec}", what, size, _once(kind, coder, size, bench))


def _once(kind: str, coder: Any, size: int, bench: Bench) -> Once:
    gradient, state = gradient_of(size // _ELEMENT_BYTES, bench.device), dict[str, Tensor]()
    wire = coder.encode(gradient, state)
    if kind == "encode":
        return lambda: coder.encode(gradient, state)
    out = torch.empty_like(gradient)
    return lambda: coder.decode(wire, out)


def gradient_of(count: int, device: torch.device) -> Tensor:
    """`count` normally distributed numbers, as a codec that selects the largest ones must search for them. Does not use the
    job's random generators."""
    own = torch.Generator(device="cpu").manual_seed(0)
    few = torch.randn(min(count, 1 << 20), generator=own)
    repeated = few.repeat(-(-count // len(few)))[:count] if count > len(few) else few
    return repeated.to(device) if len(repeated) else filled(1, device)
