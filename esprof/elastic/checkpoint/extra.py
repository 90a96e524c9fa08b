"""State in addition to model, optimizer and scheduler: objects of the script, and extra state of modules."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic.checkpoint.pack import pack, unpack
from esprof.elastic.verify.content import as_numpy

OWN, MODULES = "state", "extra_state"
"""Keys of the two kinds in a checkpoint: objects of the script by their given names, modules by their names."""

_REMEDY = {
    OWN: "Pass ElasticTrainer a `state` with the names of the checkpoint, or start a new job in another folder.",
    MODULES: "Build the model with the modules of the checkpoint, or start a new job in another folder.",
}


def check(state: Mapping[str, Stateful]) -> None:
    """Raise UsageError for objects that cannot be saved."""
    for name, item in state.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise UsageError(f"state[{name!r}]: a name must be a string without a slash")
        if not isinstance(item, Stateful):
            raise UsageError(
                f"state[{name!r}], a {type(item).__name__}, has no state_dict() and load_state_dict()",
                remedy="Implement both, as in torch.distributed.checkpoint.stateful.Stateful.",
            )


def pack_extra(model: nn.Module, state: Mapping[str, Stateful]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Both kinds as JSON, and their tensors by name. Raises UsageError for values that a checkpoint cannot hold."""
    tensors: dict[str, Tensor] = {}
    packed = {
        OWN: {name: pack(item.state_dict(), _path(OWN, name), tensors) for name, item in state.items()},
        MODULES: {
            name: pack(module.get_extra_state(), _path(MODULES, name), tensors) for name, module in _modules(model)
        },
    }
    return packed, tensors


def check_names(model: nn.Module, state: Mapping[str, Stateful], packed: Mapping[str, Any], path: Path) -> None:
    """Raise MismatchError if the checkpoint `path` with the content `packed` has other names than the job."""
    here = {OWN: sorted(state), MODULES: sorted(name for name, _ in _modules(model))}
    for kind, names in here.items():
        there = sorted(packed.get(kind, {}))
        if there != names:
            raise MismatchError(
                f"{kind} has {there} in the checkpoint and {names} in this job", path=path, remedy=_REMEDY[kind]
            )


def unpack_extra(
    model: nn.Module, state: Mapping[str, Stateful], packed: Mapping[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Restore both kinds from the result of `pack_extra`."""
    for name, item in state.items():
        item.load_state_dict(unpack(packed[OWN][name], tensors))
    for name, module in _modules(model):
        module.set_extra_state(unpack(packed[MODULES][name], tensors))


def digests(packed: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A hash of each object of both kinds, to check that ranks hold the same."""
    found = {}
    for kind in (OWN, MODULES):
        for name, content in packed[kind].items():
            digest, path = hashlib.sha256(json.dumps(content).encode()), _path(kind, name)
            for tensor_name, tensor in tensors.items():
                if tensor_name == path or tensor_name.startswith(f"{path}/"):
                    digest.update(as_numpy(tensor).tobytes())
            found[f"{kind}.{name}"] = digest.hexdigest()[:16]
    return found


def extra_states(module: nn.Module) -> dict[str, Any]:
    """The extra state of a module and of those within, by name."""
    return {name: one.get_extra_state() for name, one in _modules(module)}


def load_extra_states(module: nn.Module, states: Mapping[str, Any]) -> None:
    """Restore the result of `extra_states`."""
    for name, one in _modules(module):
        if name in states:
            one.set_extra_state(states[name])


def _path(kind: str, name: str) -> str:
    return f"shared/{kind}/{name}"


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules with state in addition to parameters and buffers."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield name, module
