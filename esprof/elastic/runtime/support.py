"""Checks that the elastic runtime supports a model, its optimizers and its loss."""

from collections.abc import Mapping, MutableMapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from esprof.core.errors import UsageError
from esprof.elastic.checkpoint import extra
from esprof.elastic.options import Gradients, Proof, Updates, check, check_reduction, check_steps
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.runtime.phases import LossFn, LossPhase, phases


def checked(
    model: nn.Module,
    optimizers: tuple[Optimizer, ...],
    loss_fn: LossFn | Sequence[LossFn],
    n_est: int,
    updates: Updates,
    gradients: Gradients,
    proof: Proof,
) -> tuple[LossPhase, ...]:
    """The loss phases of a job. Raises UsageError for options that do not fit together or are not supported."""
    check(n_est=n_est)
    check_reduction(gradients.reduction, proof.determinism)
    check_steps(optimizers, updates.schedulers)
    check_supported(model, optimizers)
    extra.check(updates.state or {})
    return phases(loss_fn, optimizers)


def check_supported(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise UsageError for a model or optimizer whose training could not be independent of the assignment."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UsageError(
                f"{name} is a SyncBatchNorm, which needs all workers at once; ESTs of a rank run one after the other",
                remedy="Use BatchNorm or GroupNorm.",
            )
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise UsageError(f"{name} has sparse gradients, which are not supported", remedy="Pass sparse=False.")
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UsageError("the model is already wrapped in DistributedDataParallel", remedy="Pass the model itself.")
    for name, buffer in model.named_buffers():
        if any(stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True)):
            raise UsageError(
                f"buffer {name} is expanded: its entries share memory, so it cannot be written",
                remedy=f"Register {name}.contiguous().",
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(f"{name} has no shape yet: the layer is lazy", remedy="Call the model once before.")
    trained = {id(parameter) for parameter in model.parameters()}
    foreign = [p for one in optimizers for group in one.param_groups for p in group["params"] if id(p) not in trained]
    if foreign:
        raise UsageError(f"the optimizer has {len(foreign)} parameters that are not in the model")


def check_optimizers(layout: Layout, optimizers: Sequence[Optimizer]) -> None:
    """Raise UsageError if an optimizer has a parameter that the model did not have before the first step."""
    for optimizer in optimizers:
        for index, group in enumerate(optimizer.param_groups):
            if not layout.parameters.issuperset(map(id, group["params"])):
                raise UsageError(
                    f"group {index} of {type(optimizer).__name__} has parameters that the model did not have",
                    remedy="Make a new ElasticTrainer for the changed model. It cannot use the checkpoints of this one.",
                )


def check_loss(loss: object) -> Tensor:
    """The loss as a scalar. Raises UsageError for what a loss function must not return."""
    if not isinstance(loss, Tensor):
        found = f"{type(loss).__name__}"
    elif loss.numel() != 1:
        found = f"a tensor of shape {list(loss.shape)}"
    elif not loss.requires_grad:
        found = "a tensor without a gradient (detached, or computed under no_grad)"
    else:
        return loss.reshape(())
    raise UsageError(
        f"the loss function returned {found}",
        remedy="Return the mean loss as a scalar tensor with a gradient.",
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on `device`, those in lists, tuples and mappings included. An object with a method
    `to` is moved by that; anything else stays as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(type(batch), "to", None)):
        return batch.to(device)
    if isinstance(batch, MutableMapping):
        moved = copy(batch)  # Of its own type, with whatever else it has.
        moved.update({key: to_device(value, device) for key, value in batch.items()})
        return moved
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
