"""Guards compression by the error of the mean gradient, the residual, and the loss.

Inspects a step at an interval; results are summed over the ranks, so that all decide the same. Without an alarm none
of these checks has failed so far; that does not guarantee the accuracy of the model.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from esprof.core.plan import GuardSettings
from esprof.elastic.compress.codecs.codec import State
from esprof.elastic.compress.exchanges import Counted
from esprof.elastic.runtime.transport import Work

_MIN_LOSSES_FOR_SPIKE = 20
"""Minimum number of losses to detect a spike."""


@dataclass
class Inspection:
    """The inspection of one bucket in one step; the same on all ranks."""

    step: int
    vnmse: float
    """Squared error of the mean gradient, relative to the square of the exact mean."""
    unsent: float
    """Norm of the residual relative to that of the gradient; root mean square over the ranks."""
    alarm: str | None = None
    """Why the bucket's codec is given up; None if it is not."""


@dataclass
class BucketWatch:
    """The inspections of one bucket."""

    settings: GuardSettings
    inspections: list[Inspection] = field(default_factory=list)

    def inspect(
        self, step: int, exact: Tensor, mean: Tensor, state: State, spiked: bool, link: Counted, everyone: Counted
    ) -> Iterator[Work]:
        """Compare `mean`, the result of the ranks of `link`, with the mean of `exact`, this rank's uncompressed
        gradient, which is overwritten. `everyone` links all ranks, which may hold other shards of the bucket."""
        unsent = state["residual"].square().sum() if "residual" in state else exact.new_zeros(())
        mine = [unsent, exact.square().sum(), exact.new_tensor(float(spiked))]
        exact.mul_(1 / link.world)
        yield link.add(exact)
        seen = [(mean - exact).double().square().sum(), exact.double().square().sum()]
        values = torch.stack([*(one.double() for one in mine), *seen])
        yield everyone.add(values)
        left, sent, spikes, lost, whole = values.tolist()
        self.judge(step, lost / whole if whole else 0.0, math.sqrt(left / sent) if sent else 0.0, spiked=spikes > 0)

    def judge(self, step: int, vnmse: float, unsent: float, *, spiked: bool) -> Inspection:
        """Record an inspection."""
        found = Inspection(step, vnmse, unsent)
        self.inspections.append(found)
        found.alarm = self._alarm(found, spiked)
        return found

    def _alarm(self, found: Inspection, spiked: bool) -> str | None:
        settings = self.settings
        if not (math.isfinite(found.vnmse) and math.isfinite(found.unsent)):
            return "a gradient is not finite"
        if spiked:
            return f"the loss rose by more than {settings.spike:g} standard deviations"
        if found.vnmse > settings.max_vnmse:
            return f"the squared error of the mean gradient is {found.vnmse:.2g} of its square, above {settings.max_vnmse:g}"
        last = [one.unsent for one in self.inspections[-settings.windows - 1 :]]
        grows = len(last) > settings.windows and all(after > before for before, after in pairwise(last))
        if grows and found.unsent > settings.most_unsent:
            return f"the residual grows and is {found.unsent:.3g} times the gradient"
        return None


@dataclass
class Losses:
    """Detects a loss far above the previous ones."""

    spike: float
    spiked: bool = False
    """Whether there was a spike since the last inspection."""
    _count: int = 0
    _mean: float = 0.0
    _squares: float = 0.0

    def add(self, loss: float) -> None:
        if not math.isfinite(loss):
            self.spiked = True
            return
        if self._count >= _MIN_LOSSES_FOR_SPIKE:
            deviation = math.sqrt(self._squares / (self._count - 1))
            self.spiked |= loss > self._mean + self.spike * max(deviation, 1e-12 * abs(self._mean))
        # Welford's running mean and sum of squares.
        self._count += 1
        away = loss - self._mean
        self._mean += away / self._count
        self._squares += away * (loss - self._mean)
