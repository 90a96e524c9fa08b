"""What is known of the calls of a model in a window: equal inputs, gradients that no optimizer uses, 64 bits."""

import weakref
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ....run.raw.call_marks import DISCARDED, FLOAT64, NOT_OPTIMIZED, SAME_INPUTS
from .. import optimizers
from .gradient_use import GradientUse
from .partly_trained import PartlyTrained

_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""Types of arguments, beside tensors, of which equal ones are the same input."""


class CallMarks:
    """Tells the marks of each call of a root, which is a module that is called from outside of all others, and of modules
    whose parameters have 64 bits, or whose buffers if they have no parameters."""

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
        self._held: set[int] = set()
        """Identifiers of the parameters that optimizers hold."""
        self._made = -1
        """How many optimizers had been made by then."""
        self._trains = False
        """Whether a root has been called whose parameters an optimizer holds: engines that update copies hold none."""

    def begin_step(self) -> None:
        for model in self._models.values():
            model.calls.clear()

    def add(self, root: nn.Module) -> None:
        self._models[id(root)] = _Model(root)
        self.watched.add(id(root))
        for module in root.modules():
            kinds = {one.dtype for one in module._parameters.values() if one is not None and one.is_floating_point()}
            if torch.float64 in kinds or _has_tables_in_float64(module):
                self._double.add(id(module))
                self.watched.add(id(module))
            self._has_single |= bool(kinds - {torch.float64})
        self._note_held()
        self.watched.update(self._partly.add(root, self._held))

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        held = {id(one) for one in _parameters([optimizer])}
        for model in list(self._models.values()):  # The collector may forget one meanwhile.
            model.use.stepped(held)

    def forget(self, module: int) -> None:
        self._models.pop(module, None)
        self._double.discard(module)
        self._partly.forget(module)
        self.watched.discard(module)

    def clear(self) -> None:
        for known in (self._models, self._double, self.watched, self._held):
            known.clear()
        self._partly.clear()
        self._made, self._trains, self._has_single = -1, False, False

    def of(self, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
        """The marks of a call that begins."""
        marks = [FLOAT64] if self._has_single and id(module) in self._double else []
        if torch._C._current_graph_task_id() != -1:
            return marks  # A backward pass computes activations again.
        model = self._models.get(id(module))
        if model is None:
            return marks + self._partly.of(module)
        leaves = tree_leaves((arguments, options))
        self._partly.begin(module, leaves)
        marks += [SAME_INPUTS] if model.is_repeated(module, leaves) else []
        return marks + self._of_gradients(model, leaves)

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
    """A root, with its parameters and buffers as of the first call in the window."""

    def __init__(self, root: nn.Module) -> None:
        self._parameters = [weakref.ref(one) for one in root.parameters()]
        self._buffers = [weakref.ref(one) for one in root.buffers()]
        self._at_first = _versions(self.parameters())
        self._is_random = any(map(_has_dropout, root.modules()))
        self.use = GradientUse(self.parameters())
        self.calls: list[tuple[list[Any], list[int]]] = []
        """Inputs of the calls in this step, tensors by weak reference and version, and versions of the tensors."""

    def parameters(self) -> list[torch.Tensor]:
        return [one for ref in self._parameters if (one := ref()) is not None]

    def is_constant(self, parameters: list[torch.Tensor]) -> bool:
        return all(one.is_leaf for one in parameters) and _versions(parameters) == self._at_first

    def is_repeated(self, root: nn.Module, leaves: list[Any]) -> bool:
        """Whether a call in this step had the same inputs; adds this one."""
        if self._is_random and root.training:
            return False
        inputs = _inputs(leaves)
        if inputs is None:
            return False
        buffers = [one for ref in self._buffers if (one := ref()) is not None]
        now = [*inputs, root.training], _versions([*self.parameters(), *buffers])
        if now in self.calls:
            return True
        self.calls.append(now)
        return False


def _has_dropout(module: nn.Module) -> bool:
    """Whether a module is a dropout, or has one as a number, as attention does."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return any("drop" in name and isinstance(value, float) and value > 0 for name, value in vars(module).items())


def _inputs(leaves: list[Any]) -> list[Any] | None:
    """The inputs of a call, comparable with those of another; None if some are not, or there is no tensor."""
    if not all(isinstance(one, (torch.Tensor, *_PLAIN)) for one in leaves):
        return None
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    if not tensors or any(one.is_inference() for one in tensors):  # Those have no versions.
        return None
    # Weak references are equal if they are the same tensor: tensors themselves would be compared by their values.
    return [_Same(one) if isinstance(one, torch.Tensor) else (type(one), one) for one in leaves]


class _Same:
    """A tensor, as long as it lives, and how often it had been changed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version

    def __eq__(self, other: object) -> bool:
        mine = self._tensor()
        return (
            isinstance(other, _Same)
            and mine is not None
            and mine is other._tensor()
            and self._version == other._version
        )

    __hash__ = None  # type: ignore[assignment]


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    return [-1 if one.is_inference() else one._version for one in tensors]


def _parameters(some: list[Optimizer]) -> Iterator[torch.Tensor]:
    return chain.from_iterable(group["params"] for one in some for group in one.param_groups)
