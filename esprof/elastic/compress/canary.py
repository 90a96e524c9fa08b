"""A canary: the same short training with and without compression, from several seeds, and how far the losses are
apart."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch.distributed as dist

from esprof.core.errors import UsageError
from esprof.core.statistics import mean_margin
from esprof.elastic.compress.hook import How

Train = Callable[[How | None, int], Iterable[float]]
"""Trains from a seed, all anew, with the gradients compressed so or, for None, as they are; gives this rank's loss of
each step. The seed decides all that is random."""

_TAIL_DIVISOR = 4
"""The last loss is the mean of the last fourth of the steps."""


@dataclass(frozen=True)
class Canary:
    """What came of it. It speaks of so many steps, and not of the accuracy that a whole training comes to."""

    steps: int
    plain: tuple[float, ...]
    """Last loss without compression, from each seed; the mean of all ranks."""
    compressed: tuple[float, ...]
    tolerance: float

    @property
    def gaps(self) -> tuple[float, ...]:
        """By how much the loss is higher with compression, relative, from each seed."""
        return tuple(
            (with_it - without) / abs(without) if without else math.copysign(math.inf, with_it)
            for without, with_it in zip(self.plain, self.compressed, strict=True)
        )

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean gap (Student's t over the seeds); infinite where a loss was not finite."""
        gaps = self.gaps
        if not all(map(math.isfinite, gaps)):
            return -math.inf, math.inf
        margin = mean_margin(gaps)
        return mean(gaps) - margin, mean(gaps) + margin

    @property
    def passed(self) -> bool:
        """Whether the loss is sure to be no more than the tolerance higher."""
        return self.interval[1] <= self.tolerance


def canary(train: Train, how: How, *, seeds: Sequence[int] = (0, 1, 2), tolerance: float = 0.02) -> Canary:
    """Train from each seed with and without `how`. All ranks call it, and come to the same answer.

    Raises UsageError for less than two seeds, or trainings of unlike lengths.
    """
    if len(seeds) < 2:
        raise UsageError("one seed does not show how much losses vary", remedy="Pass two or more.")
    runs = [[list(train(choice, seed)) for seed in seeds] for choice in (None, how)]
    lengths = {len(losses) for one in runs for losses in one}
    if len(lengths) != 1 or 0 in lengths:
        raise UsageError(f"the trainings have {sorted(lengths)} steps; they need the same number")
    plain, compressed = ([mean(losses[-max(1, len(losses) // _TAIL_DIVISOR) :]) for losses in one] for one in runs)
    return Canary(lengths.pop(), _over_ranks(plain), _over_ranks(compressed), tolerance)


def _over_ranks(mine: list[float]) -> tuple[float, ...]:
    """The means over the ranks."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return tuple(map(mean, zip(*gathered, strict=True)))
