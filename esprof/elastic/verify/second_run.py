"""The first run of an EST step that runs a second time, and its comparison with the second: both must give the same
bits."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from esprof.core.assignment import Est
from esprof.core.errors import UsageError
from esprof.elastic.runtime.rng import RngState
from esprof.elastic.verify.content import content

ATTRIBUTES_OF_ALL_MODULES = frozenset(vars(nn.Module())) | {"_is_full_backward_hook"}
"""Attributes that every module has."""

VALUE = "the value of "
"""With this begin the names of results that are values which the EST has changed."""

_REMEDY = (
    "What one EST leaves behind must not reach another: draw random numbers from the global generators, keep state in "
    "buffers, let forward change nothing else, and let nothing depend on the rank or the process."
)


@dataclass
class FirstRun:
    """The first run of an EST step: its inputs and results."""

    est: Est
    rng: RngState
    batches: list[Any] = field(default_factory=list)
    """Copies of its batches, made before anything could change them, where they cannot be made again."""
    found: dict[str, str] = field(default_factory=dict)
    """Hashes of its batches, loss, gradients and buffers, by name."""
    values: dict[str, Any] = field(default_factory=dict)
    """What the EST had changed before, in attributes, closures and globals."""

    def note(self, batch: Any, *, keep: bool) -> None:
        self.found[_batch(len(self.found))] = content(batch)
        if keep:
            self.batches.append(deepcopy(batch))


def refuse(est: Est, differ: Sequence[str], where: str, hint: str = "") -> None:
    """Raise UsageError if results `differ` between two runs of an EST step; `hint` says what may be the cause."""
    for name in differ[:1]:
        raise UsageError(f"{name} of EST {est} differed {where}{hint}", remedy=_REMEDY)


def of_batches(batches: Sequence[Any]) -> dict[str, str]:
    """Hashes of an EST's batches."""
    return {_batch(number): content(batch) for number, batch in enumerate(batches)}


def _batch(number: int) -> str:
    return f"batch {number}"


def outcome(
    loss: Tensor, gradients: Mapping[str, Tensor], buffers: Mapping[str, Tensor], values: Mapping[str, Any]
) -> dict[str, str]:
    """Hashes of the results of an EST step; `values` are the result of `EstValues.leave`."""
    named: dict[str, Any] = {"the loss": loss}
    named |= {f"the gradient of {name}": tensor for name, tensor in gradients.items()}
    named |= {f"buffer {name}": tensor for name, tensor in buffers.items()}
    named |= {f"{VALUE}{name}": copy for name, (_, copy) in values.items()}
    return {name: content(value) for name, value in named.items()}


def attributes(model: nn.Module) -> dict[str, str]:
    """Hashes of the Python attributes of modules, by names such as `model.body.0.p`."""
    return {
        ".".join(filter(None, ("model", name, key))): content(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in ATTRIBUTES_OF_ALL_MODULES
    }


def different(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of entries that differ."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]
