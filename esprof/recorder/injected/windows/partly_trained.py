"""Models of which optimizers hold some parameters only: the calls that compute gradients of others."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from ....run.raw.call_marks import NOT_HELD, WEIGHTS_NOT_HELD

MIN_SHARE_OF_PARAMETERS = 0.5
"""Least share of a module's parameters that are its own, and none of a module in it, for its call to stand for them."""


class PartlyTrained:
    """Marks the calls of modules with parameters that require gradients and that no optimizer holds, in models of which
    optimizers hold others.

    Up to the first call of a module that learns, nobody needs their backward passes. After it, these pass the gradient on.
    """

    def __init__(self) -> None:
        self._idle: dict[int, bool] = {}
        """Identifier of each module with such parameters -> whether no module in it learns."""
        self._learning: set[int] = set()
        """Identifiers of modules with parameters that an optimizer holds."""
        self._is_needed = False
        """Whether something that learns came before, in this call of the model."""

    def add(self, root: nn.Module, held: Collection[int]) -> set[int]:
        """Examine a model, given the identifiers of the parameters that optimizers hold; those of the modules to watch."""
        learning = [one for one in root.parameters() if id(one) in held]
        # While FSDP2 computes, modules have other parameters than those that it shards, which the optimizer holds.
        kinds = {type(one) for one in learning}
        idle: dict[int, bool] = {}
        for module in root.modules() if learning else ():
            own = [one for one in module._parameters.values() if one is not None and one.requires_grad]
            if any(id(one) in held for one in own):
                self._learning.add(id(module))
            elif own and all(type(one) in kinds for one in own) and _is_its_own(module, own):
                idle[id(module)] = not any(id(one) in held for one in module.parameters())
        self._idle |= idle
        return set(idle) | (self._learning if idle else set())

    def forget(self, module: int) -> None:
        self._idle.pop(module, None)
        self._learning.discard(module)

    def clear(self) -> None:
        self._idle.clear()
        self._learning.clear()

    def begin(self, root: nn.Module, inputs: Sequence[Any]) -> None:
        """A model is called with these inputs."""
        has_gradient = any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
        self._is_needed = has_gradient or id(root) in self._learning

    def of(self, module: nn.Module) -> list[str]:
        """The mark of a call that begins."""
        if id(module) in self._learning:
            self._is_needed = True
        if id(module) not in self._idle or not torch.is_grad_enabled():
            return []
        is_whole = self._idle[id(module)] and not self._is_needed
        return [NOT_HELD if is_whole else WEIGHTS_NOT_HELD]


def _is_its_own(module: nn.Module, own: Sequence[nn.Parameter]) -> bool:
    """Whether most parameters of a module are these, and not of the modules in it."""
    return sum(one.numel() for one in own) >= MIN_SHARE_OF_PARAMETERS * sum(one.numel() for one in module.parameters())
