"""Watch the outermost calls of modules: those that are not made inside the call of another module."""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from ...shared.torch_features import hide_from_dynamo


class OutermostCalls:
    """Calls `on_return` with each outermost module after its call, in the same thread, until `stop`.

    `nn.Module.__call__` is replaced for that. A hook for all modules would do as well, but torch warns of one where a module
    is compiled. Dynamo takes what it finds as `nn.Module.__call__` when it is loaded for the original, which it never traces
    into: once it is loaded, nothing is replaced, or put back, any more.
    """

    def __init__(self, on_return: Callable[[nn.Module], object]) -> None:
        self._on_return = on_return
        self._on = False
        self._original: Callable[..., Any] | None = None
        self._replacement: Callable[..., Any] | None = None
        self._thread = threading.local()

    def install(self) -> None:
        if "torch._dynamo" in sys.modules:
            return
        original, thread = nn.Module.__call__, self._thread

        @functools.wraps(original)
        def __call__(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            if not self._on or getattr(thread, "is_inside", False):
                return original(module, *arguments, **options)
            thread.is_inside = True
            try:
                returned = original(module, *arguments, **options)
            finally:
                thread.is_inside = False
            self._on_return(module)
            return returned

        hide_from_dynamo(__call__)
        self._original, self._replacement, self._on = original, __call__, True
        nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def stop(self) -> None:
        self._on = False
        if self._original is not None and "torch._dynamo" not in sys.modules:
            # Whoever has replaced it after us has ours, which does nothing more.
            if nn.Module.__call__ is self._replacement:
                nn.Module.__call__ = self._original  # type: ignore[method-assign]
            self._original = None
