"""The calls of modules, as events of the profiler's trace."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from ....run.raw.module_events import MODULE_PREFIX
from ...shared.torch_features import annotation, hide_from_dynamo, is_profiled_here
from .. import optimizers
from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log
from .call_marks import CallMarks
from .module_sizes import ModuleSizes

_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attribute in which a wrapper holds its module: of data parallelism and engines, compilation, sharding, checkpointing."""

_MAX_ROOTS = 100
"""Most modules of a window that are called from outside of all others. Those beyond have the names of their classes."""


class ModuleEvents:
    """Between `start` and `stop`, each call of a module is an event `nn.Module: NAME` of the running profiler. What is known
    of the calls are events within them (`call_marks`). At its first call, the sizes of a module are noted (`module_sizes`).

    `nn.Module.__call__` is replaced for that. A hook for all modules would do as well, but each compiled module would be
    compiled again when the hook comes and when it goes, and torch warns of it. Dynamo does not guard `__call__`. It takes
    what it finds there when it is loaded for the original: if it is loaded meanwhile, the replacement stays, and does
    nothing more.
    """

    def __init__(self, log: Log) -> None:
        self._breaker = CircuitBreaker("recording of modules", log, self.stop)
        self._on = False
        self._sizes = ModuleSizes(log)
        self._names: dict[int, str] = {}
        """Name of each module that has been called, by its identifier."""
        self._uncalled: dict[int, str] = {}
        """Name of each other module in a root."""
        self._roots: list[weakref.ref[nn.Module]] = []
        """The roots of the window. With the end of one its names go, as other modules may get the same identifiers."""
        self._of_class: Counter[str] = Counter()
        self._marks = CallMarks()
        self._marks_breaker = CircuitBreaker("marking of calls", log, self._marks.clear)
        self._original: Callable[..., Any] | None = None
        self._replacement: Callable[..., Any] | None = None
        self._before_dynamo = False

    def start(self) -> None:
        self._breaker.run(self._install)

    def begin_step(self) -> None:
        self._marks_breaker.run(self._marks.begin_step)

    def stop(self) -> None:
        """Stop, even after a fault."""
        self._on = False
        optimizers.unwatch(self._optimizer_stepped)
        self._marks.clear()
        for found in (self._names, self._uncalled, self._roots, self._of_class):
            found.clear()
        if self._before_dynamo and "torch._dynamo" in sys.modules:
            return
        # Whoever has replaced it after us has ours, which does nothing more.
        if self._original is not None and nn.Module.__call__ is self._replacement:
            nn.Module.__call__ = self._original  # type: ignore[method-assign]
        self._original = self._replacement = None

    def _install(self) -> None:
        if self._replacement is None:
            self._before_dynamo = "torch._dynamo" not in sys.modules
            self._original = nn.Module.__call__
            self._replacement = self._replaced(self._original)
            nn.Module.__call__ = self._replacement  # type: ignore[method-assign]
        optimizers.watch(self._optimizer_stepped)
        self._on = True

    def _replaced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known, watched = self._names.get, self._marks.watched

        def __call__(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            # Where dynamo traces this, it knows the first answer, and goes on to the original.
            if is_dynamo_compiling():
                return original(module, *arguments, **options)
            name = known(id(module))
            if name is None:
                return self._first(module, original, arguments, options)
            if id(module) not in watched:
                with annotation(name):
                    return original(module, *arguments, **options)
            with annotation(name):
                marks = _begun(self._marks_of(module, arguments, options))
                try:
                    result = original(module, *arguments, **options)
                finally:
                    _end(marks)
                self._ended(module, result)
                return result

        # Else a compiled step that calls this behind a graph break would compile it, too.
        hide_from_dynamo(__call__)
        return __call__

    def _first(
        self, module: nn.Module, original: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Call a module for the first time, or one that gets no name of its own."""
        if not self._on:
            return original(module, *arguments, **options)
        if id(module) not in self._uncalled:
            self._name_all(module)
        name = self._uncalled.pop(id(module), None)
        if name is None:
            with annotation(MODULE_PREFIX + type(module).__name__):
                return original(module, *arguments, **options)
        self._names[id(module)] = name
        with annotation(name):
            marks = _begun(self._marks_of(module, arguments, options) if id(module) in self._marks.watched else ())
            try:
                result = self._sizes.measured(name, module, original, arguments, options)
            finally:
                _end(marks)
        if id(module) in self._marks.watched:
            self._ended(module, result)
        return result

    def _marks_of(self, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Collection[str]:
        return self._marks_breaker.run(self._marks.of, module, arguments, options) or ()

    def _ended(self, module: nn.Module, result: Any) -> None:
        self._marks_breaker.run(self._marks.ended, module, result)

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        self._marks_breaker.run(self._marks.optimizer_stepped, optimizer)

    def _name_all(self, root: nn.Module) -> None:
        self._breaker.run(self._name, root)

    def _name(self, root: nn.Module) -> None:
        """Name `root`, which is called from outside of all modules with names, and the modules in it."""
        # DataParallel makes modules for its threads in each call.
        if len(self._roots) >= _MAX_ROOTS or not is_profiled_here():
            return
        mine: list[int] = []
        self._roots.append(weakref.ref(root, lambda _: self._forget(mine)))
        self._marks.add(root)
        kind = type(root).__name__
        self._of_class[kind] += 1
        label = kind if self._of_class[kind] == 1 else f"{kind}_{self._of_class[kind]}"
        for path, module in root.named_modules():
            parts = [label, *(part for part in path.split(".") if part and part not in _WRAPPED[1:])]
            if id(module) not in self._names and id(module) not in self._uncalled:
                self._uncalled[id(module)] = MODULE_PREFIX + ".".join(parts)
                mine.append(id(module))
            if module is root and _is_wrapper(root):
                break  # The module in it becomes a root when it is called.

    def _forget(self, modules: list[int]) -> None:
        for module in modules:
            self._names.pop(module, None)
            self._uncalled.pop(module, None)
            self._marks.forget(module)


def _begun(marks: Collection[str]) -> list[Any]:
    """Annotations that have begun. Dynamo would trace an `ExitStack` of them."""
    found = [*map(annotation, marks)]
    for one in found:
        one.__enter__()
    return found


def _end(marks: list[Any]) -> None:
    for one in reversed(marks):
        one.__exit__(None, None, None)


def _is_wrapper(module: nn.Module) -> bool:
    children = list(module._modules)
    return len(children) == 1 and children[0] in _WRAPPED


hide_from_dynamo(ModuleEvents._first)
for own in (
    ModuleEvents._name_all,
    ModuleEvents._marks_of,
    ModuleEvents._ended,
    ModuleEvents._optimizer_stepped,
    _begun,
    _end,
):
    hide_from_dynamo(own, with_callees=True)
