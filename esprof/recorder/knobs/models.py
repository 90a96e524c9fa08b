"""Find the models that the job wraps in DistributedDataParallel."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

NONE_MADE = "the process has created no DistributedDataParallel"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def watch(
    changed: Callable[..., Arguments] | None = None, made: Callable[[Any], None] = lambda model: None
) -> "weakref.WeakSet[Any]":
    """Return a set that collects the models created from now on.

    `changed` returns other arguments for the constructor; if it fails with them, it is called with the job's own. `made` is
    called with each new model and must not raise.
    """
    from torch.nn.parallel import DistributedDataParallel

    models: weakref.WeakSet[Any] = weakref.WeakSet()
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(model: Any, *arguments: Any, **options: Any) -> None:
        call(original, model, changed, arguments, options)
        models.add(model)
        made(model)

    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign, assignment]
    return models


def call(
    original: Callable[..., None],
    one: Any,
    changed: Callable[..., Arguments] | None,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """Construct `one` with changed arguments or, if that fails, with the job's own, whose errors reach the job."""
    if changed is not None:
        try:
            others, named = changed(one, *arguments, **options)
            return original(one, *others, **named)
        except Exception:  # noqa: BLE001  the job must get what it would get without the knob
            pass
    return original(one, *arguments, **options)
