"""Record saves of the job as stages, named after the function that saves.

A save that goes on after its call, or that another thread makes, is noted as running in the background until it is durable.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Future
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ....run.raw.stages import STAGING
from ..log.circuit_breaker import CircuitBreaker

_OF_MODULES = {
    "torch": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict": ("get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions that save, or that gather the state to be saved, by module. Only modules that the job itself imports are
wrapped."""

_UPLOADS = "torch.distributed.checkpoint.async_save"
"""The function that leaves the writing to threads of torch."""


class SaveProbe:
    """Wraps functions that save. Of calls in one another only the outermost counts.

    A module that is imported from now on is wrapped before any `from … import` gets at its functions. In one that was
    there before, the names that other modules have imported already are found and bound to the wrapper.
    """

    def __init__(self, note: Callable[[tuple[str, int, int, bool]], None], breaker: CircuitBreaker) -> None:
        """`note` takes (name, start, end, whether it ran in the background), in ns."""
        self._note = note
        self._breaker = breaker
        self._inside = threading.local()
        self._uploads = set[object]()
        """Saves that torch's own threads write, or are about to."""
        self._waiting = dict(_OF_MODULES)

    def install(self) -> None:
        """Wrap the functions of loaded modules, and of those that are imported later."""
        self.wrap_loaded()
        if self._waiting:
            sys.meta_path.insert(0, WhenLoaded(self._waiting, self._take))

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
            is_main = threading.current_thread() is threading.main_thread()
            if hasattr(self._inside, "save") or (not is_main and self._uploads):
                return original(*arguments, **options)
            start_ns, self._inside.save, upload = time.time_ns(), name, object()
            if name == _UPLOADS:  # Its threads may begin before it returns.
                self._uploads.add(upload)
            try:
                saved = original(*arguments, **options)
                self._breaker.run(self._note_when_done, name, start_ns, saved, upload)
                return saved
            except BaseException:
                self._uploads.discard(upload)
                raise
            finally:
                del self._inside.save
                self._note((name, start_ns, time.time_ns(), not is_main))

        rebind(original, save)

    def _note_when_done(self, name: str, start_ns: int, saved: Any, upload: object) -> None:
        """Note the ends of what `torch.distributed.checkpoint.async_save` leaves to be done."""
        staged, written = getattr(saved, "staging_completion", None), getattr(saved, "upload_completion", saved)
        if isinstance(staged, Future):
            staged.add_done_callback(lambda _: self._note((name + STAGING, start_ns, time.time_ns(), True)))
        if isinstance(written, Future):
            written.add_done_callback(lambda _: self._uploaded(name, start_ns, upload))

    def _uploaded(self, name: str, start_ns: int, upload: object) -> None:
        self._uploads.discard(upload)
        self._note((name, start_ns, time.time_ns(), True))


class WhenLoaded:
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
