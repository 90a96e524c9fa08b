"""Calls of models, and of modules in them, with inputs that these have had in the same step."""

import ctypes
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_leaves

from .module_state import PLAIN, ModuleState, SameTensor

MOST_DIFFERENT = 16
"""Most different calls of a module that are compared in a step: recurrent cells are called in each time step."""


class RepeatedCalls:
    """Tells which calls of a step have the inputs of an earlier one, while the module is the same: weights, buffers, and
    attributes of it and of the modules in it.

    What a module returns for equal inputs counts as equal, and so does the call of the next module with it. Calls that draw
    random numbers equal no other. Modules are compared in the first whole step, and in later ones as long as each step
    repeats a call; models also if they are called several times.
    """

    def __init__(self) -> None:
        self._calls: dict[int, _ModuleCalls] = {}
        """Of each watched module, by identifier."""
        self._results: dict[int, _Result] = {}
        """Of the calls in this step, by identifier of the tensor."""

    def add(self, root: nn.Module) -> Iterable[int]:
        """Watch a model and the modules in it; their identifiers."""
        for module in root.modules():
            self._calls.setdefault(id(module), _ModuleCalls(module)).is_root |= module is root
        return map(id, root.modules())

    def begin_step(self) -> set[int]:
        """Forget the calls of the step before; identifiers of the modules that need not be watched any longer."""
        self._results.clear()
        # The collector may forget one meanwhile.
        idle = {module for module, calls in list(self._calls.items()) if not calls.begin_step()}
        for module in idle:
            self.forget(module)
        return idle

    def optimizer_stepped(self) -> None:
        """Compare no call with those before: not all optimizers let tensors know that they have changed them."""
        for calls in list(self._calls.values()):
            calls.different.clear()

    def begin(self, module: nn.Module, leaves: list[Any], spec: TreeSpec) -> bool:
        """Whether a call, which begins with these arguments, repeats an earlier one."""
        calls = self._calls.get(id(module))
        return calls is not None and calls.begin(module, leaves, spec, self._results)

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
    """Its inputs, and the state of the module."""
    gradient: Any
    """Gradient of one of the parameters at its begin."""


@dataclass(frozen=True)
class _Begun:
    """A call that has not ended."""

    call: _FirstCall
    """It, or the earlier one that it repeats."""
    given: set[int]
    """Identifiers of the tensors that it got."""
    random: Any
    """State of the generators of random numbers at its begin."""


class _ModuleCalls:
    """The calls of a module in a step."""

    def __init__(self, module: nn.Module) -> None:
        self.is_root = False
        self.different: list[_FirstCall] = []
        self._module = weakref.ref(module)
        self._state = ModuleState(module)
        self._is_whole = False
        """Whether the step has been watched from its begin."""
        self._number = 0
        """Number of calls in the step."""
        self._has_repeated = False
        self._begun: list[_Begun | None] = []
        """Calls that have not ended, the outermost first; None for those that are not compared."""

    def begin_step(self) -> bool:
        """Forget the calls of the step before; whether to watch the next one."""
        is_needed = not self._is_whole or self._has_repeated or (self.is_root and self._number > 1)
        self._is_whole, self._has_repeated, self._number = True, False, 0
        self.different.clear()
        self._begun.clear()
        return is_needed and self._module() is not None

    def begin(self, module: nn.Module, leaves: list[Any], spec: TreeSpec, results: Mapping[int, "_Result"]) -> bool:
        """Whether a call repeats an earlier one."""
        self._number += 1
        random = None if len(self.different) >= MOST_DIFFERENT or self._module() is not module else _random_state()
        inputs = None if random is None else _inputs(leaves, spec, results)
        if inputs is None:
            self._begun.append(None)
            return False
        call = _FirstCall([inputs, _autocast(), self._state.now()], self._state.gradient())
        equal = next((one for one in self.different if _is_repeated(one, call)), None)
        self._begun.append(_Begun(equal or call, {id(one) for one in leaves}, random))
        self._has_repeated |= equal is not None
        return equal is not None

    def end(self) -> _Begun | None:
        """The call that began last; None if its result does not follow from its inputs."""
        begun = self._begun.pop() if self._begun else None
        if begun is None:
            return None
        is_known = begun.call in self.different
        if begun.random != _random_state():
            if is_known:
                self.different.remove(begun.call)
            return None
        if not is_known:
            self.different.append(begun.call)
        return begun


def _is_repeated(first: _FirstCall, call: _FirstCall) -> bool:
    """Whether `call` has the result of `first`. Adversarial training changes weights after a backward pass without a trace,
    and calls the model again with gradients."""
    return first.state == call.state and (not torch.is_grad_enabled() or first.gradient == call.gradient)


class _Result:
    """A tensor that a call has returned, and which other results equal it: those of the same origin."""

    __slots__ = ("_origin", "_tensor", "_version")

    def __init__(self, tensor: torch.Tensor, origin: tuple[_FirstCall, int]) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version
        self._origin = origin

    def origin_of(self, tensor: torch.Tensor) -> tuple[_FirstCall, int] | None:
        """The origin of `tensor`; None if it has changed since, or is another one."""
        is_same = self._tensor() is tensor and self._version == tensor._version
        return self._origin if is_same else None


def _inputs(leaves: list[Any], spec: TreeSpec, results: Mapping[int, _Result]) -> list[Any] | None:
    """The inputs of a call, comparable with those of another; None if some are not, or there is no tensor."""
    if not all(isinstance(one, (torch.Tensor, *PLAIN)) for one in leaves):
        return None
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    # Tensors of inference have no versions.
    if not tensors or any(one.is_inference() or one.layout is not torch.strided for one in tensors):
        return None
    found = [_identity(one, results) if isinstance(one, torch.Tensor) else (type(one), one) for one in leaves]
    return [spec, *found]


def _identity(tensor: torch.Tensor, results: Mapping[int, _Result]) -> Any:
    """What two tensors share if they are the same, equal results, or equal views of such.

    Tensors are compared by identity and version, never by value: reading values would wait for the GPU.
    """
    known = results.get(id(tensor))
    origin = known and known.origin_of(tensor)
    base = tensor._base
    if origin or base is None:
        return origin or SameTensor(tensor)
    view = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
    return _identity(base, results), view


def _autocast() -> list[Any]:
    kinds = ("cpu", "cuda")
    return [torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds]


def _random_state() -> Any:
    """State of PyTorch's generators of random numbers; None while they must not be asked for it."""
    if torch._C._are_functorch_transforms_active():
        return None
    state = torch.default_generator.get_state()
    # The profiler would record the conversion to a NumPy array as operations of the job.
    cpu = ctypes.string_at(state.data_ptr(), state.nbytes)
    if not torch.cuda.is_initialized():
        return cpu
    if torch.cuda.is_current_stream_capturing():
        return None
    return cpu, torch.cuda.default_generators[torch.cuda.current_device()].get_offset()
