"""What modules read when they are called, comparable with what they read at an earlier call."""

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

MOST_ITEMS = 64
"""Most items of an attribute that are compared one by one."""

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""Types of which equal values are the same input."""

_WITH_DATA = (torch.Tensor, nn.Parameter)
"""Types of tensors that have data of their own, unlike some subclasses."""

_OF_EACH_MODULE = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that every module has, such as its hooks."""


class ModuleState:
    """What a module and those in it read when they are called: parameters, buffers and other attributes.

    `torch.func.functional_call` has other parameters in their place. While FSDP2 computes, modules have others, too, with
    the content of those that it shards: of parameters of a class of their own, those count that were there at first.
    """

    def __init__(self, module: nn.Module) -> None:
        self._held = [
            _ModuleContents(vars(one), one._parameters, one._buffers, _is_norm(one)) for one in module.modules()
        ]
        parameters = self._held_now()
        self._at_first = [weakref.ref(one) for one in parameters]
        self._is_sharded = not all(type(one) in _WITH_DATA for one in parameters)

    def now(self) -> list[Any]:
        found: list[Any] = list(map(SameTensor, self._parameters()))
        for held in self._held:
            # Training does not read the statistics of a normalization.
            is_read = not (held.is_norm and held.attributes.get("training"))
            found += [SameTensor(one) for one in held.buffers.values() if is_read and one is not None]
            found += [_compared(value) for name, value in held.attributes.items() if name not in _OF_EACH_MODULE]
        return found

    def gradient(self) -> Any:
        """The gradient of one of the parameters, which a backward pass makes or changes."""
        gradients = (one.grad for one in self._parameters() if one.requires_grad and one.is_leaf)
        return next((None if one is None else SameTensor(one) for one in gradients), None)

    def _parameters(self) -> list[torch.Tensor]:
        if self._is_sharded:
            return [one for ref in self._at_first if (one := ref()) is not None]
        return self._held_now()

    def _held_now(self) -> list[torch.Tensor]:
        return [one for held in self._held for one in held.parameters.values() if one is not None]


class _ModuleContents(NamedTuple):
    """What a module holds."""

    attributes: dict[str, Any]
    parameters: Mapping[str, torch.Tensor | None]
    buffers: Mapping[str, torch.Tensor | None]
    is_norm: bool


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase)


def _compared(value: Any) -> Any:
    """What two equal values of an attribute share."""
    if isinstance(value, (list, tuple, set, dict)) and len(value) <= MOST_ITEMS:
        items = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        return [_one_of(one) for one in items]
    return _one_of(value)


def _one_of(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return value
    return SameTensor(value) if isinstance(value, torch.Tensor) else id(value)


class SameTensor:
    """A tensor, as long as it lives, where its data are, and how often it had been changed."""

    __slots__ = ("_state", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        version = -1 if tensor.is_inference() else tensor._version  # Those of inference have none.
        # Code that gives other `.data` to a tensor leaves its version as it was.
        has_data = type(tensor) in _WITH_DATA and tensor.layout is torch.strided
        self._state = version, tensor.data_ptr() if has_data else 0

    def __eq__(self, other: object) -> bool:
        mine = self._tensor()
        return (
            isinstance(other, SameTensor)
            and mine is not None
            and mine is other._tensor()
            and self._state == other._state
        )

    __hash__ = None  # type: ignore[assignment]
