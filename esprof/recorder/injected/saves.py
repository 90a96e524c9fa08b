"""Notes when the training saves something: as stages, named after the function that saves."""

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .fuse import Fuse

_OF_MODULES = {
    "torch": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions that save, by module. Only modules that the job itself has imported are looked at."""


class SaveProbe:
    """Wraps functions that save. Only the outermost counts, and only on the main thread."""

    def __init__(self, note: Callable[[tuple[str, int, int]], None], fuse: Fuse) -> None:
        """`note` takes (name, start, end), in ns."""
        self._note = note
        self._fuse = fuse
        self._inside = False
        self._waiting = dict(_OF_MODULES)

    def look(self) -> None:
        """Wrap the functions of modules that were imported since this was last asked."""
        for module in self._waiting.keys() & sys.modules.keys():
            for function in self._waiting.pop(module):
                self._fuse.run(self._wrap, module, function)

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

        # Also where it is defined: a job that pickles the function does so by that name.
        for owner in (module, original.__module__):
            if getattr(sys.modules.get(owner), function, None) is original:
                setattr(sys.modules[owner], function, save)
