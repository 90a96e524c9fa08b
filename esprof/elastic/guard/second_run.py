"""A step's turns once more, in another order: they must come to the same bits.

What an EST leaves behind for the next one, outside of what the trainer switches (parameters, buffers, generators), makes the
bits depend on which ESTs share a process. There is no list of such things; but whatever it is, turns that are run
again, last first, find it as another EST has left it.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from esprof.elastic.assignment import Est
from esprof.elastic.guard.content import content
from esprof.elastic.state.rng import RngState
from esprof.errors import UsageError

_OF_MODULES = frozenset(vars(nn.Module())) | {"_is_full_backward_hook"}
"""Attributes that every module has."""

_REMEDY = (
    "What one EST leaves behind must not reach another: draw random numbers from the global generators, keep state in "
    "buffers, and let forward change nothing else."
)


@dataclass
class FirstRun:
    """A turn as it was run the first time: what it began with, and what it came to."""

    est: Est
    rng: RngState
    batches: list[Any] = field(default_factory=list)
    """Copies of its batches, made before anything could change them."""
    found: Mapping[str, str] = field(default_factory=dict)
    """Hashes of its loss, gradients and buffers, by name."""

    def keep(self, batch: Any) -> None:
        self.batches.append(deepcopy(batch))

    def compare(self, step: int, found: Mapping[str, str], changed: list[str]) -> None:
        """Raise UsageError where the second run has found something else. `changed` are attributes that have changed."""
        for name, before in self.found.items():
            if found[name] != before:
                hint = f"; changed since: {', '.join(changed[:5])}" if changed else ""
                raise UsageError(
                    f"{name} of EST {self.est} was another one when step {step} was run a second time{hint}",
                    remedy=_REMEDY,
                )


def outcome(loss: Tensor, gradients: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, str]:
    """Hashes of what a turn came to."""
    named = {"the loss": loss}
    named |= {f"the gradient of {name}": tensor for name, tensor in gradients.items()}
    named |= {f"buffer {name}": tensor for name, tensor in buffers.items()}
    return {name: content(tensor) for name, tensor in named.items()}


def attributes(model: nn.Module) -> dict[str, str]:
    """Hashes of what modules keep in Python attributes of their own, by name."""
    return {
        f"{name or 'the model'}.{key} ({type(module).__name__})": content(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _OF_MODULES
    }


def different(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of what is not as it was."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]
