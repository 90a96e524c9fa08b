"""A canary: compares the loss of short trainings with and without compression, from several seeds."""

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
"""Trains from scratch with a seed and a compression, None for none; yields this rank's loss of each step. All
randomness must derive from the seed."""

_TAIL_DIVISOR = 4
"""The final loss is the mean over the last 1/4 of the steps."""


@dataclass(frozen=True)
class Canary:
    """The result of a canary. It covers only these steps, not the accuracy of a complete training."""

    steps: int
    plain: tuple[float, ...]
    """Final loss without compression for each seed, averaged over ranks."""
    compressed: tuple[float, ...]
    tolerance: float

    @property
    def gaps(self) -> tuple[float, ...]:
        """Relative increase of the loss with compression, for each seed."""
        return tuple(
            (with_it - without) / abs(without) if without else math.copysign(math.inf, with_it)
            for without, with_it in zip(self.plain, self.compressed, strict=True)
        )

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the mean gap (Student's t over the seeds); infinite if a loss was not finite."""
        gaps = self.gaps
        if not all(map(math.isfinite, gaps)):
            return -math.inf, math.inf
        margin = mean_margin(gaps)
        return mean(gaps) - margin, mean(gaps) + margin

    @property
    def passed(self) -> bool:
        """Whether the upper bound of the loss increase is within the tolerance."""
        return self.interval[1] <= self.tolerance


def canary(train: Train, how: How, *, seeds: Sequence[int] = (0, 1, 2), tolerance: float = 0.02) -> Canary:
    """Train from each seed with and without `how`. All ranks call it and get the same result.

    Raises UsageError for fewer than two seeds, or trainings of different lengths.
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
