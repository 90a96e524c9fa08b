"""The objective of the exact searches for stages, and how they minimise it.

T is the time of a stage for a microbatch, and m the number of microbatches. ΣT + (m − 1) max T is an upper bound of the time
of 1F1B with unequal stages.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

PlanT = TypeVar("PlanT")

_STEP_DOWN = 1e-12
"""How far the limit of T goes below the last one, relative: more than rounding."""


def objective_us(times: Sequence[float], microbatches: int) -> float:
    """ΣT + (m − 1) max T of stages with these T."""
    return sum(times) + (microbatches - 1) * max(times)


def by_falling_limits(
    least_sums: Callable[[float], Iterable[tuple[PlanT, Sequence[float]]]], microbatches: int, best_us: float = np.inf
) -> Iterator[PlanT]:
    """Plans, among them the best one unless none is below `best_us`.

    The limit of T goes down (Alpa, OSDI 2022, §5.2). For each limit `least_sums` gives the plan of least ΣT with no T above
    it, and its T, for each number of stages that is possible.
    """
    limit = best_us / microbatches
    while plans := list(least_sums(limit)):
        yield from (plan for plan, _ in plans)
        if microbatches == 1:
            return
        best_us = min(best_us, *(objective_us(times, microbatches) for _, times in plans))
        # A better plan has a smaller max T than this: no later ΣT is less than the least so far.
        room = (best_us - min(sum(times) for _, times in plans)) / (microbatches - 1)
        limit = min(max(max(times) for _, times in plans) * (1 - _STEP_DOWN), room)
