"""The losses and optimizers of a step: one loss for all optimizers, or alternating pairs, as in a GAN."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from esprof.core.errors import UsageError

LossFn = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> loss, a scalar: the mean over the batch's samples."""


@dataclass(frozen=True)
class LossPhase:
    """A loss, and the optimizers that update by its gradient."""

    loss_fn: LossFn
    optimizers: tuple[Optimizer, ...]
    trained: frozenset[int] | None
    """Ids of the parameters that its loss must reach; None for all."""

    def trains(self, parameter: nn.Parameter) -> bool:
        return self.trained is None or id(parameter) in self.trained


def phases(losses: LossFn | Sequence[LossFn], optimizers: tuple[Optimizer, ...]) -> tuple[LossPhase, ...]:
    """The phases of a job, between which its steps alternate. Raises UsageError unless each loss has an optimizer."""
    if not isinstance(losses, Sequence):
        return (LossPhase(losses, optimizers, None),)
    if len(losses) != len(optimizers):
        raise UsageError(
            f"there are {len(losses)} loss functions and {len(optimizers)} optimizers",
            remedy="Pass one loss function, or one for each optimizer: they then alternate from step to step.",
        )
    return tuple(
        LossPhase(loss, (optimizer,), frozenset(_held(optimizer)))
        for loss, optimizer in zip(losses, optimizers, strict=True)
    )


def _held(optimizer: Optimizer) -> list[int]:
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
