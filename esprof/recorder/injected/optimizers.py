"""The optimizers of the job, as long as they live."""

import weakref

from torch.optim import Optimizer

_alive: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()
_made = 0


def add(optimizer: Optimizer) -> None:
    global _made
    _alive.add(optimizer)
    _made += 1


def alive() -> list[Optimizer]:
    return list(_alive)


def made() -> int:
    """How many have been made so far."""
    return _made
