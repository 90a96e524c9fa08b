"""The first run of an EST step that runs a second time, and its comparison with the second: both must give the same
bits."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from esprof.core.assignment import Est
from esprof.core.errors import UsageError
from esprof.elastic.checkpoint.pack import pack, unpack
from esprof.elastic.runtime.rng import RngState
from esprof.elastic.verify.content import content

ATTRIBUTES_OF_ALL_MODULES = frozenset(vars(nn.Module())) | {"_is_full_backward_hook"}
"""Attributes that every module has."""

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

    def description(self) -> dict[str, Any]:
        """What another rank needs to run this EST step, JSON-serializable."""
        tensors: dict[str, Tensor] = {}
        values = pack(self.values, "values", tensors)
        return {
            "est": self.est,
            "rng": _listed(self.rng.tensors()),
            "found": self.found,
            "values": values,
            "tensors": _listed(tensors),
        }

    @classmethod
    def of_description(cls, description: dict[str, Any]) -> "FirstRun":
        rng, tensors = _tensors(description["rng"]), _tensors(description["tensors"])
        values = unpack(description["values"], tensors)
        return cls(description["est"], RngState.of_tensors(rng), found=description["found"], values=values)

    def compare(self, where: str, again: Mapping[str, str], hint: str = "") -> None:
        """Raise UsageError if the run of this EST step `where`, whose results are `again`, has had other results."""
        require_equal(self.est, self.found, where, again, hint)


def require_equal(est: Est, first: Mapping[str, str], where: str, again: Mapping[str, str], hint: str = "") -> None:
    """Raise UsageError if the two runs of an EST step have had different results; `hint` says what may be the cause."""
    for name in different(first, again)[:1]:
        raise UsageError(f"{name} of EST {est} differed {where}{hint}", remedy=_REMEDY)


def _listed(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        name: [str(tensor.dtype)[6:], list(tensor.shape), tensor.flatten().tolist()] for name, tensor in tensors.items()
    }


def _tensors(listed: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)
        for name, (dtype, shape, values) in listed.items()
    }


def of_batches(batches: Sequence[Any]) -> dict[str, str]:
    """Hashes of an EST's batches."""
    return {_batch(number): content(batch) for number, batch in enumerate(batches)}


def _batch(number: int) -> str:
    return f"batch {number}"


def outcome(loss: Tensor, gradients: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, str]:
    """Hashes of the results of an EST step."""
    named = {"the loss": loss}
    named |= {f"the gradient of {name}": tensor for name, tensor in gradients.items()}
    named |= {f"buffer {name}": tensor for name, tensor in buffers.items()}
    return {name: content(tensor) for name, tensor in named.items()}


def attributes(model: nn.Module) -> dict[str, str]:
    """Hashes of the Python attributes of modules, by name."""
    return {
        f"{name or 'the model'}.{key} ({type(module).__name__})": content(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in ATTRIBUTES_OF_ALL_MODULES
    }


def different(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of entries that differ."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]
