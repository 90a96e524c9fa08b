"""A step's turns once more, in another order: they must come to the same bits.

What an EST leaves behind for the next one, outside of what the trainer switches (parameters, buffers, generators), makes the
bits depend on which ESTs share a process. There is no list of such things; but whatever it is, turns that are run
again, last first, find it as another EST has left it. And what depends on the rank or the process, such as its number, its
clock or its files, shows where another rank runs a turn.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from esprof.core.assignment import Est
from esprof.core.errors import UsageError
from esprof.elastic.runtime.rng import RngState
from esprof.elastic.verify.content import content

_ATTRIBUTES_OF_ALL_MODULES = frozenset(vars(nn.Module())) | {"_is_full_backward_hook"}
"""Attributes that every module has."""

_REMEDY = (
    "What one EST leaves behind must not reach another: draw random numbers from the global generators, keep state in "
    "buffers, let forward change nothing else, and let nothing depend on the rank or the process."
)


_STEPS_VERIFIED_AT_START = 2
"""What an EST leaves behind in one may show in the next."""


def is_run_twice(step: int, first_step: int, every: int | None) -> bool:
    """Whether the turns of a step are run twice, in a process that began with `first_step`; `every` is that of `Proof`."""
    return every != 0 and (step < first_step + _STEPS_VERIFIED_AT_START or (every is not None and step % every == 0))


@dataclass
class FirstRun:
    """A turn as it was run the first time: what it began with, and what it came to."""

    est: Est
    rng: RngState
    batches: list[Any] = field(default_factory=list)
    """Copies of its batches, made before anything could change them, where they cannot be made again."""
    found: dict[str, str] = field(default_factory=dict)
    """Hashes of its batches, loss, gradients and buffers, by name."""

    def note(self, batch: Any, *, keep: bool) -> None:
        self.found[_batch(len(self.found))] = content(batch)
        if keep:
            self.batches.append(deepcopy(batch))

    def description(self) -> dict[str, Any]:
        """What another rank needs to run this turn, as JSON can hold it."""
        rng = {name: [str(tensor.dtype)[6:], tensor.tolist()] for name, tensor in self.rng.tensors().items()}
        return {"est": self.est, "rng": rng, "found": self.found}

    @classmethod
    def of_description(cls, description: dict[str, Any]) -> "FirstRun":
        rng = {
            name: torch.tensor(values, dtype=getattr(torch, dtype))
            for name, (dtype, values) in description["rng"].items()
        }
        return cls(description["est"], RngState.of_tensors(rng), found=description["found"])

    def compare(self, where: str, found: Mapping[str, str], changed: Sequence[str]) -> None:
        """Raise UsageError where the second run has found something else. `changed` are attributes that have changed."""
        for name, before in self.found.items():
            if found[name] != before:
                hint = f"; changed since: {', '.join(changed[:5])}" if changed else ""
                raise UsageError(f"{name} of EST {self.est} differed {where}{hint}", remedy=_REMEDY)


def of_batches(batches: Sequence[Any]) -> dict[str, str]:
    """Hashes of an EST's batches."""
    return {_batch(number): content(batch) for number, batch in enumerate(batches)}


def _batch(number: int) -> str:
    return f"batch {number}"


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
        if key not in _ATTRIBUTES_OF_ALL_MODULES
    }


def different(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of what is not as it was."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]
