"""What the elastic runtime's codecs take to encode and decode gradients, idle and beside a backward pass."""

from typing import Any

import torch
from torch import Tensor

from . import backward
from .agreement import filled
from .bench import Bench, Once

_SIZES = [1 << power for power in range(10, 28)]
_SIZES_BESIDE_PASS = [1 << 20]
_ELEMENT_BYTES = 4


def registered(bench: Bench) -> dict[str, Any]:
    """Spec -> codec, one of each kind that the elastic runtime knows on any rank; none where the Python of a rank has no
    esprof."""
    try:
        from esprof.elastic.compress.codecs.registry import codec, examples
    except ImportError as missing:
        bench.agreement.united([])
        bench.agreement.most(1)
        bench.left_out("codecs", f"the job's Python cannot import esprof ({missing})")
        return {}
    specs = bench.agreement.united(examples())
    (some_lack,) = bench.agreement.most(0)
    # All ranks go through the same ones.
    return {} if some_lack else {spec: codec(spec) for spec in specs}


def idle(bench: Bench, codecs: dict[str, Any], wanted: list[int]) -> None:
    """Encode and decode by size, bytes of the gradient, with nothing beside it."""
    for number, (spec, made) in enumerate(codecs.items()):
        for later, kind in ((0.5, "encode"), (0.0, "decode")):
            bench.take(1 / (len(codecs) - number + later))
            bench.sweep(
                bench.mine(kind, spec, "bytes"),
                _SIZES,
                lambda size, kind=kind, made=made: _once(kind, made, size, bench),  # type: ignore[misc]
                wanted=wanted,
            )


def beside_backward(bench: Bench, codecs: dict[str, Any], passes: backward.RepeatedBackward) -> None:
    """Encode and decode beside a backward pass, and the pass beside them."""
    for number, (spec, made) in enumerate(codecs.items()):
        bench.take(1 / (len(codecs) - number))
        for kind in ("encode", "decode"):
            what = bench.mine(kind, spec, "bytes", beside="backward")
            for size in _SIZES_BESIDE_PASS:
                backward.beside(bench, passes, f"{kind} {spec}", what, size, _once(kind, made, size, bench))


def _once(kind: str, made: Any, size: int, bench: Bench) -> Once:
    gradient, state = gradient_of(size // _ELEMENT_BYTES, bench.device), dict[str, Tensor]()
    wire = made.encode(gradient, state)
    if kind == "encode":
        return lambda: made.encode(gradient, state)
    out = torch.empty_like(gradient)
    return lambda: made.decode(wire, out)


def gradient_of(count: int, device: torch.device) -> Tensor:
    """Numbers that are unlike one another, about normal: what is largest has to be searched for. The job's generators are
    left alone."""
    own = torch.Generator(device="cpu").manual_seed(0)
    few = torch.randn(min(count, 1 << 20), generator=own)
    repeated = few.repeat(-(-count // len(few)))[:count] if count > len(few) else few
    return repeated.to(device) if len(repeated) else filled(1, device)
