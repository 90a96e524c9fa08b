"""Registry of codecs by name."""

from collections.abc import Callable

import torch

from esprof.core.errors import UsageError
from esprof.elastic.compress.codecs.blocks import Quantised, Sign
from esprof.elastic.compress.codecs.cast import Cast
from esprof.elastic.compress.codecs.codec import Codec
from esprof.elastic.compress.codecs.low_rank import PowerSGD
from esprof.elastic.compress.codecs.sparse import RandomK, TopK

_FACTORIES: dict[str, Callable[[str], Codec]] = {
    "fp16": lambda argument: Cast(_bare("fp16", argument), torch.float16),
    "bf16": lambda argument: Cast(_bare("bf16", argument), torch.bfloat16),
    "int8": lambda argument: Quantised(_bare("int8", argument), 8),
    "int4": lambda argument: Quantised(_bare("int4", argument), 4),
    "topk": lambda ratio: TopK(_number("topk", ratio, "0.1")),
    "randk": lambda ratio: RandomK(_number("randk", ratio, "0.1")),
    "sign": lambda argument: Sign(_bare("sign", argument)),
    "powersgd": lambda rank: PowerSGD(_whole("powersgd", rank, "4")),
}
_EXAMPLES = {"topk": "0.01", "randk": "0.01", "powersgd": "4"}
"""Name of a codec -> a usual argument, where it needs one."""


def register_codec(name: str, factory: Callable[[str], Codec], example: str = "") -> None:
    """Register a codec as `name` or `name:argument`; `factory` gets the argument, "" if there is none.

    `example` is a usual argument, with which `esprof probe` measures what the codec costs.
    """
    _FACTORIES[name] = factory
    _EXAMPLES[name] = example


def examples() -> list[str]:
    """The text of each known codec, with a usual argument."""
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
    """Raise UsageError for an unknown codec, or one that does not support gradients of a `scaled` loss."""
    made = codec(spec)
    if scaled and made is not None and made.has_state:
        raise UsageError(f"codec {spec} stores a residual, which the loss scale of fp16 would falsify: use bf16")


def _bare(name: str, argument: str) -> str:
    if argument:
        raise UsageError(f"codec {name} takes no argument, but has {argument!r}")
    return name


def _number(name: str, argument: str, example: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise UsageError(f"codec {name} takes a number, as in {name}:{example}, not {argument!r}") from None


def _whole(name: str, argument: str, example: str) -> int:
    number = _number(name, argument, example)
    if not number.is_integer():
        raise UsageError(f"codec {name} takes a whole number, as in {name}:{example}, not {argument!r}")
    return int(number)
