"""What a process holds from step to step: parameters, gradients, buffers, states of optimizers."""

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_MAX_SIZES = 1000


def held_sizes() -> dict[str, Any]:
    """The sizes of `esprof.run.run.ModelBytes`. Storage that several tensors share counts once, as the first kind.

    All modules and optimizers of the process count.
    """
    modules, optimizers = _living()
    parameters = [
        *(one for module in modules for one in module._parameters.values() if one is not None),
        *(one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]),
    ]
    seen: set[int] = set()
    return {
        "parameters": _bytes(parameters, seen),
        "gradients": _bytes((one.grad for one in parameters), seen),
        "buffers": _bytes((one for module in modules for one in module._buffers.values()), seen),
        "optimizer": _bytes((one for optimizer in optimizers for one in _state(optimizer)), seen),
        "buckets": sum(_bucket_bytes(module) for module in modules if isinstance(module, DistributedDataParallel)),
        "parameter_sizes": sorted({_local(one).nbytes for one in parameters})[:_MAX_SIZES],
    }


def _living() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """All modules and optimizers of the process. `isinstance` would run code of proxies among other objects."""
    modules, optimizers = [], []
    for one in gc.get_objects():
        if issubclass(type(one), nn.Module) and "_parameters" in one.__dict__:
            modules.append(one)
        elif issubclass(type(one), torch.optim.Optimizer) and "param_groups" in one.__dict__:
            optimizers.append(one)
    return modules, optimizers


def _state(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for of_parameter in list(optimizer.state.values()):
        if isinstance(of_parameter, dict):
            yield from of_parameter.values()


def _bucket_bytes(module: DistributedDataParallel) -> int:
    if module.gradient_as_bucket_view:
        return 0  # The gradients count.
    return sum(one.nbytes for one in module.parameters() if one.requires_grad)


def _bytes(tensors: Iterable[Any], seen: set[int]) -> int:
    """Bytes of the storage of these tensors that is not in `seen`, to which it is added."""
    total = 0
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        storage = _local(tensor).untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The shard that this process has of a distributed tensor."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
