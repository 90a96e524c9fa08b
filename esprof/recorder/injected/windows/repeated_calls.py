"""Calls of models, and of modules in them, with inputs that these have had in the same step."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ....run.raw.call_marks import SAME_FORWARD, SAME_INPUTS

MOST_DIFFERENT = 16
"""Most different calls a step of a module that others are compared with: recurrent cells are called in each time step."""

_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""Types of arguments, beside tensors, of which equal ones are the same input."""


class RepeatedCalls:
    """Tells which calls of a step have the inputs of an earlier one, while weights and buffers are the same.

    Equal calls have equal results, which are equal inputs of the next module, unless the first of them drew random numbers.
    A module within a model is watched for one whole step, and after each step in which such a call of it was found.
    """

    def __init__(self) -> None:
        self._calls: dict[int, _ModuleCalls] = {}
        """Of each watched module, by identifier."""
        self._results: dict[int, _Result] = {}
        """Of the calls in this step, by identifier of the tensor."""

    def add(self, root: nn.Module) -> Iterable[int]:
        """Watch a model and the modules in it; their identifiers."""
        for module in root.modules():
            self._calls.setdefault(id(module), _ModuleCalls(module)).stays |= module is root
        return map(id, root.modules())

    def begin_step(self) -> set[int]:
        """Forget the calls of the step before; identifiers of the modules that need not be watched any longer."""
        self._results.clear()
        idle = {module for module, calls in self._calls.items() if not calls.begin_step()}
        for module in idle:
            del self._calls[module]
        return idle

    def begin(self, module: nn.Module, leaves: list[Any]) -> list[str]:
        """The mark of a call that begins."""
        calls = self._calls.get(id(module))
        return [] if calls is None else calls.begin(module, leaves, self._results)

    def end(self, module: nn.Module, result: Any) -> None:
        """Note the result of the call of a module that began last."""
        calls = self._calls.get(id(module))
        begun = None if calls is None else calls.end()
        if begun is None:
            return
        for place, one in enumerate(tree_leaves(result)):
            if isinstance(one, torch.Tensor) and not one.is_inference() and id(one) not in begun.given:
                self._results[id(one)] = _Result(one, (begun.call, place))

    def forget(self, module: int) -> None:
        self._calls.pop(module, None)

    def clear(self) -> None:
        self._calls.clear()
        self._results.clear()


@dataclass(eq=False)
class _FirstCall:
    """A call that had no equal before in the step."""

    state: list[Any]
    """Its inputs, weights and buffers."""
    has_gradient: bool


@dataclass(frozen=True)
class _Begun:
    """A call that has not ended."""

    call: _FirstCall
    """It, or the earlier one that it equals."""
    given: set[int]
    """Identifiers of the tensors that it got."""
    random: Any
    """State of the generators of random numbers at its begin."""


class _ModuleCalls:
    """The calls of a module in a step."""

    def __init__(self, module: nn.Module) -> None:
        self.stays = False
        """Whether it is watched in any case."""
        self._is_whole = False
        """Whether the step has been watched from its begin."""
        self._has_repeated = False
        self._weights = _Tensors(module, lambda one: one._parameters)
        self._buffers = _Tensors(module, lambda one: {} if _is_norm(one) else one._buffers)
        self._statistics = _Tensors(module, lambda one: one._buffers if _is_norm(one) else {})
        """Buffers of normalizations, which only evaluation reads."""
        self._different: list[_FirstCall] = []
        self._begun: list[_Begun | None] = []
        """Calls that have not ended, the outermost first; None for those that cannot be compared."""

    def begin_step(self) -> bool:
        """Forget the calls of the step before; whether to watch the next one."""
        is_needed = self.stays or not self._is_whole or self._has_repeated
        self._is_whole, self._has_repeated = True, False
        self._different.clear()
        self._begun.clear()
        return is_needed

    def begin(self, module: nn.Module, leaves: list[Any], results: Mapping[int, "_Result"]) -> list[str]:
        """The mark of a call with these inputs."""
        inputs, random, has_gradient = _inputs(leaves, results), _random_state(), torch.is_grad_enabled()
        if inputs is None or random is None:
            self._begun.append(None)
            return []
        read = [self._weights, self._buffers, *([] if module.training else [self._statistics])]
        state = [inputs, module.training, *(one.state() for one in read)]
        equal = next((one for one in self._different if one.state == state), None)
        call = equal or _FirstCall(state, has_gradient)
        self._begun.append(_Begun(call, {id(one) for one in leaves}, random))
        if equal is None:
            if len(self._different) < MOST_DIFFERENT:
                self._different.append(call)
            return []
        self._has_repeated = True
        is_first_gradient = has_gradient and not equal.has_gradient
        equal.has_gradient |= has_gradient
        return [SAME_FORWARD if is_first_gradient else SAME_INPUTS]

    def end(self) -> _Begun | None:
        """The call that began last; None if its result is not known from its inputs."""
        begun = self._begun.pop() if self._begun else None
        if begun is None or begun.random == _random_state():
            return begun
        if begun.call in self._different:
            self._different.remove(begun.call)
        return None


class _Tensors:
    """Weights or buffers of a module and of those in it, as they are when it is called.

    `torch.func.functional_call` has others in their place. While FSDP2 computes, modules have others, too, which are of one
    content with those that it shards; then the first ones count.
    """

    def __init__(self, module: nn.Module, of: Callable[[nn.Module], dict[str, Any]]) -> None:
        self._held = [found for one in module.modules() if (found := of(one))]
        self._at_first = [weakref.ref(one) for one in self._now()]
        self._is_sharded = not all(type(one) in (nn.Parameter, torch.Tensor) for one in self._now())

    def state(self) -> list["_Same"]:
        found = [one for ref in self._at_first if (one := ref()) is not None] if self._is_sharded else self._now()
        return list(map(_Same, found))

    def _now(self) -> list[torch.Tensor]:
        return [one for held in self._held for one in held.values() if one is not None]


class _Result:
    """A tensor that a call has returned, and which other results equal it: those of the same origin."""

    def __init__(self, tensor: torch.Tensor, origin: tuple[_FirstCall, int]) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version
        self._origin = origin

    def origin_of(self, tensor: torch.Tensor) -> tuple[_FirstCall, int] | None:
        """The origin of `tensor`; None if it has changed since, or is another one."""
        is_same = self._tensor() is tensor and self._version == tensor._version
        return self._origin if is_same else None


class _Same:
    """A tensor, as long as it lives, and how often it had been changed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = -1 if tensor.is_inference() else tensor._version  # Those of inference have none.

    def __eq__(self, other: object) -> bool:
        mine = self._tensor()
        return (
            isinstance(other, _Same)
            and mine is not None
            and mine is other._tensor()
            and self._version == other._version
        )

    __hash__ = None  # type: ignore[assignment]


def _inputs(leaves: list[Any], results: Mapping[int, _Result]) -> list[Any] | None:
    """The inputs of a call, comparable with those of another; None if some are not, or there is no tensor."""
    if not all(isinstance(one, (torch.Tensor, *_PLAIN)) for one in leaves):
        return None
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    # Tensors of inference have no versions.
    if not tensors or any(one.is_inference() or one.layout is not torch.strided for one in tensors):
        return None
    return [_identity(one, results) if isinstance(one, torch.Tensor) else (type(one), one) for one in leaves]


def _identity(tensor: torch.Tensor, results: Mapping[int, _Result]) -> Any:
    """What two tensors share if they are the same, equal results, or equal views of such.

    They are told by weak references: values are never compared, as that would wait for the GPU.
    """
    known = results.get(id(tensor))
    origin = known and known.origin_of(tensor)
    base = tensor._base
    if origin or base is None:
        return origin or _Same(tensor)
    view = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
    return _identity(base, results), view


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase)


def _random_state() -> Any:
    """State of PyTorch's generators of random numbers; None while they must not be asked for it."""
    if torch._C._are_functorch_transforms_active():
        return None
    cpu = torch.default_generator.get_state().numpy().tobytes()
    if not torch.cuda.is_initialized():
        return cpu
    if torch.cuda.is_current_stream_capturing():
        return None
    return cpu, torch.cuda.default_generators[torch.cuda.current_device()].get_offset()
