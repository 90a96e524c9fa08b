"""The optimizers of the job, as long as they live, and who is told of their steps."""

import weakref
from collections.abc import Callable

from torch.optim import Optimizer

_alive: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()
_made = 0
_watchers: list[Callable[[Optimizer], None]] = []


def add(optimizer: Optimizer) -> None:
    global _made
    _alive.add(optimizer)
    _made += 1


def alive() -> list[Optimizer]:
    return list(_alive)


def made() -> int:
    """How many have been made so far."""
    return _made


def watch(on_step: Callable[[Optimizer], None]) -> None:
    """Call `on_step` after each step of an optimizer, until `unwatch`. It must not raise."""
    if on_step not in _watchers:
        _watchers.append(on_step)


def unwatch(on_step: Callable[[Optimizer], None]) -> None:
    if on_step in _watchers:
        _watchers.remove(on_step)


def stepped(optimizer: Optimizer) -> None:
    """Tell all who watch that an optimizer has made a step."""
    for on_step in list(_watchers):
        on_step(optimizer)
