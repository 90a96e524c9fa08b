"""Whether compression still does no harm: what is lost, what is left unsent, and the loss.

A look is taken every so many steps, and what it sees is summed over the ranks, so that all decide alike. That the guard is
content says that so far nothing of this was wrong, not that the model will be as accurate.
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
"""Losses from which on one can be told from the others."""


@dataclass
class Inspection:
    """What was seen of one bucket at one step; the same on all ranks."""

    step: int
    vnmse: float
    """Squared error of the mean that the ranks came to, relative to the squared exact one."""
    unsent: float
    """Norm of what was not sent, relative to that of the gradient; the root mean square over the ranks."""
    alarm: str | None = None
    """Why the bucket's codec is given up; None where it is not."""


@dataclass
class BucketWatch:
    """The looks at one bucket."""

    settings: GuardSettings
    inspections: list[Inspection] = field(default_factory=list)

    def inspect(
        self, step: int, exact: Tensor, mean: Tensor, state: State, spiked: bool, link: Counted, everyone: Counted
    ) -> Iterator[Work]:
        """Look at `mean`, which the ranks of `link` came to, beside `exact`, what this rank had to send, which is used up.
        `everyone` is a link to all ranks, which may have other parts of the bucket."""
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
        """Take in a look."""
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
    """Whether the latest loss is far above those before."""

    spike: float
    spiked: bool = False
    """Since this was last asked for by a look."""
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
