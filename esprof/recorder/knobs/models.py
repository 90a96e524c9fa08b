"""The models that the job has wrapped in DistributedDataParallel."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

NONE_MADE = "the process has made no DistributedDataParallel"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def watch(
    changed: Callable[..., Arguments] | None = None, made: Callable[[Any], None] = lambda model: None
) -> "weakref.WeakSet[Any]":
    """The models, from now on. `changed` makes other arguments of those of the constructor, and `made` is told each model;
    neither may raise. Where the constructor does not take the other arguments, it gets its own."""
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
    """Construct `one` with changed arguments, or where that fails with its own, with which the job meets its own faults."""
    if changed is not None:
        try:
            others, named = changed(one, *arguments, **options)
            return original(one, *others, **named)
        except Exception:  # noqa: BLE001  whatever it is, the job must get what it would have got without us
            pass
    return original(one, *arguments, **options)
