"""Record saves of the job as stages, named after the function that saves."""

import functools
import sys
import threading
import time
from collections.abc import Callable, Container
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ..log.circuit_breaker import CircuitBreaker

_OF_MODULES = {
    "torch": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions that save, by module. Only modules that the job itself imports are wrapped."""


class SaveProbe:
    """Wraps functions that save. Only the outermost counts, and only on the main thread.

    A module that is imported from now on is wrapped before any `from … import` gets at its functions. In one that was
    there before, the names that other modules have imported already are found and bound to the wrapper.
    """

    def __init__(self, note: Callable[[tuple[str, int, int]], None], breaker: CircuitBreaker) -> None:
        """`note` takes (name, start, end), in ns."""
        self._note = note
        self._breaker = breaker
        self._inside = False
        self._waiting = dict(_OF_MODULES)

    def install(self) -> None:
        """Wrap the functions of loaded modules, and of those that are imported later."""
        self.wrap_loaded()
        if self._waiting:
            sys.meta_path.insert(0, _WhenLoaded(self._waiting, self._take))

    def wrap_loaded(self) -> None:
        """Wrap the functions of modules whose import has ended since the last call."""
        for name in self._waiting.keys() & sys.modules.keys():
            # A module that imports torch itself may be in the midst of its own import, and without its functions yet.
            if not getattr(getattr(sys.modules[name], "__spec__", None), "_initializing", False):
                self._take(name)

    def _take(self, module: str) -> None:
        for function in self._waiting.pop(module, ()):
            self._breaker.run(self._wrap, module, function)

    def _wrap(self, module: str, function: str) -> None:
        name, original = f"{module}.{function}", getattr(sys.modules[module], function, None)
        if original is None:
            return

        @functools.wraps(original)
        def save(*arguments: Any, **options: Any) -> Any:
            if self._inside or threading.current_thread() is not threading.main_thread():
                return original(*arguments, **options)
            start_ns, self._inside = time.time_ns(), True
            try:
                return original(*arguments, **options)
            finally:
                self._inside = False
                self._note((name, start_ns, time.time_ns()))

        rebind(original, save)


class _WhenLoaded:
    """An import finder that calls `then` with each module of `names` once loaded, before its importer continues."""

    def __init__(self, names: Container[str], then: Callable[[str], None]) -> None:
        self._names = names
        self._then = then
        self._asks = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._names or self._asks:
            return None
        self._asks = True
        try:
            spec = find_spec(name)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_wrap(module: ModuleType) -> None:
                load(module)
                self._then(name)

            spec.loader.exec_module = load_and_wrap  # type: ignore[method-assign]
        return spec


def rebind(old: object, new: object) -> None:
    """Replace `old` by `new` in the globals of all modules: where it is defined, so that jobs can pickle it, where it is
    exported, and where it was imported by name."""
    for module in list(sys.modules.values()):
        if issubclass(type(module), ModuleType):  # Not `isinstance`, which would wake a module that loads lazily.
            for name in [name for name, value in list(vars(module).items()) if value is old]:
                setattr(module, name, new)
