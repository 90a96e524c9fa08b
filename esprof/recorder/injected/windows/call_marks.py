"""What is known of the calls of a model in a window: equal inputs, gradients that no optimizer uses, 64 bits."""

import weakref
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten

from ....run.raw.call_marks import DISCARDED, FLOAT64, NOT_OPTIMIZED, SAME_INPUTS
from .. import optimizers
from .gradient_use import GradientUse
from .partly_trained import PartlyTrained
from .repeated_calls import RepeatedCalls


class CallMarks:
    """Tells the marks of each call of a root, which is a module that is called from outside of all others, and of other
    modules that repeat a call, compute in 64 bits, or have parameters that no optimizer holds."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        """Identifiers of the modules that may have marks."""
        self._models: dict[int, _Model] = {}
        """Of roots, by identifier."""
        self._double: set[int] = set()
        """Identifiers of modules with parameters of 64 bits of their own, or with buffers alone."""
        self._has_single = False
        """Whether others have parameters of less."""
        self._partly = PartlyTrained()
        self._repeated = RepeatedCalls()
        self._always: set[int] = set()
        """Those of the watched modules whose calls may have other marks than that of equal inputs."""
        self._held: set[int] = set()
        """Identifiers of the parameters that optimizers hold."""
        self._made = -1
        """How many optimizers had been made by then."""
        self._trains = False
        """Whether a root has been called whose parameters an optimizer holds: engines that update copies hold none."""

    def begin_step(self) -> None:
        self.watched -= self._repeated.begin_step() - self._always

    def add(self, root: nn.Module) -> None:
        self._models[id(root)] = _Model(root)
        self._always.add(id(root))
        for module in root.modules():
            kinds = {one.dtype for one in module._parameters.values() if one is not None and one.is_floating_point()}
            if torch.float64 in kinds or _has_tables_in_float64(module):
                self._double.add(id(module))
                self._always.add(id(module))
            self._has_single |= bool(kinds - {torch.float64})
        self._note_held()
        self._always.update(self._partly.add(root, self._held))
        self.watched.update(self._always, self._repeated.add(root))

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        held = {id(one) for one in _parameters([optimizer])}
        for model in list(self._models.values()):  # The collector may forget one meanwhile.
            model.use.stepped(held)
        self._repeated.optimizer_stepped()

    def forget(self, module: int) -> None:
        self._models.pop(module, None)
        self._double.discard(module)
        self._partly.forget(module)
        self._repeated.forget(module)
        self._always.discard(module)
        self.watched.discard(module)

    def clear(self) -> None:
        for known in (self._models, self._double, self.watched, self._always, self._held):
            known.clear()
        self._partly.clear()
        self._repeated.clear()
        self._made, self._trains, self._has_single = -1, False, False

    def of(self, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
        """The marks of a call that begins."""
        marks = [FLOAT64] if self._has_single and id(module) in self._double else []
        if torch._C._current_graph_task_id() != -1:
            return marks  # A backward pass computes activations again.
        leaves, spec = tree_flatten((arguments, options))
        marks += [SAME_INPUTS] if self._repeated.begin(module, leaves, spec) else []
        model = self._models.get(id(module))
        if model is None:
            return marks + self._partly.of(module)
        self._partly.begin(module, leaves)
        return marks + self._of_gradients(model, leaves)

    def ended(self, module: nn.Module, result: Any) -> None:
        """Note what a call that had begun has returned."""
        if torch._C._current_graph_task_id() == -1:
            self._repeated.end(module, result)

    def _note_held(self) -> None:
        if self._made != optimizers.made():
            self._made, self._held = optimizers.made(), {id(one) for one in _parameters(optimizers.alive())}

    def _of_gradients(self, model: "_Model", leaves: list[Any]) -> list[str]:
        """The mark of a call whose backward pass will compute gradients of the parameters that no optimizer uses."""
        self._note_held()
        parameters = model.parameters()
        is_held = any(id(one) in self._held for one in parameters)
        self._trains |= is_held
        if not torch.is_grad_enabled() or not any(one.requires_grad for one in parameters):
            return []
        is_discarded = model.use.called()
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in leaves):
            return []  # The gradient goes on to the inputs.
        if is_held:
            return [DISCARDED] if is_discarded else []
        return [NOT_OPTIMIZED] if self._trains and (model.is_constant(parameters) or model.use.only_grow) else []


def _has_tables_in_float64(module: nn.Module) -> bool:
    """Whether a module without any parameters computes with buffers, such as a filter bank or a window, of 64 bits alone."""
    tables = [
        one for one in module._buffers.values() if one is not None and one.is_floating_point() and one.numel() > 1
    ]
    is_double = bool(tables) and all(one.dtype == torch.float64 for one in tables)
    return is_double and next(module.parameters(), None) is None


class _Model:
    """A root, with its parameters as of the first call in the window."""

    def __init__(self, root: nn.Module) -> None:
        self._parameters = [weakref.ref(one) for one in root.parameters()]
        self._at_first = _versions(self.parameters())
        self.use = GradientUse(self.parameters())

    def parameters(self) -> list[torch.Tensor]:
        return [one for ref in self._parameters if (one := ref()) is not None]

    def is_constant(self, parameters: list[torch.Tensor]) -> bool:
        return all(one.is_leaf for one in parameters) and _versions(parameters) == self._at_first


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    return [-1 if one.is_inference() else one._version for one in tensors]


def _parameters(some: list[Optimizer]) -> Iterator[torch.Tensor]:
    return chain.from_iterable(group["params"] for one in some for group in one.param_groups)
