"""The interval of checkpoints that adapts, while the job runs, to what checkpoints cost."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from esprof.core.save_cost import SaveCost
from esprof.core.types import Ns

_WEIGHT = 0.5
"""Weight of the newest checkpoint in the average of costs."""

_LOWERED_FROM = 1.25
"""The interval is lowered only if it exceeds the required one by this factor, so that it does not alternate."""

Costs = Sequence[float]
"""The fields of a `SaveCost`, ns, as ranks exchange them."""


class AdaptiveInterval:
    """The interval, in steps, at which checkpoints take the share `max_overhead` of the training time.

    After each checkpoint the ranks exchange what it cost them, and the highest costs count. The interval doubles or
    halves at most. CheckFreq (FAST 2021, §4.3) only raises it.
    """

    def __init__(self, every: int, max_overhead: float) -> None:
        self.every = every
        self._max_overhead = max_overhead
        self._steps: list[Ns] = []
        """Start of each step since the last checkpoint began, that of its step first."""
        self._stopped_ns: Ns | None = None
        """Time for which the last checkpoint stopped the training; None before the first."""
        self._written_ns: Ns | None = None
        """When it was durable; None if it is not, or failed."""
        self._average: Costs | None = None

    def step_begins(self, at_ns: Ns) -> None:
        self._steps.append(at_ns)

    def begun(self, from_ns: Ns, to_ns: Ns) -> None:
        """A checkpoint has stopped the training from `from_ns` to `to_ns`, and is written from now on."""
        self._steps = [from_ns]
        self._stopped_ns, self._written_ns = to_ns - from_ns, None

    def written(self, at_ns: Ns) -> None:
        """The checkpoint is durable. Called in the thread that writes."""
        self._written_ns = at_ns

    def costs(self) -> Costs | None:
        """What the last checkpoint cost this rank; None if it was not written, or its step has not ended."""
        stopped_ns, written_ns = self._stopped_ns, self._written_ns
        if stopped_ns is None or written_ns is None or len(self._steps) < 2:
            return None
        spans = list(pairwise([self._steps[0] + stopped_ns, *self._steps[1:]]))
        beside = [end - start for start, end in spans if start < written_ns]
        clean = [end - start for start, end in spans if start >= written_ns] or beside
        step = median(clean)
        slower = max(0.0, fmean(beside) - step) if beside else 0.0
        return step, float(stopped_ns), float(written_ns - self._steps[0]), slower

    def adapt(self, of_ranks: Sequence[Costs | None]) -> int:
        """The interval after a checkpoint that cost the ranks so much; unchanged if a rank does not know."""
        known = [costs for costs in of_ranks if costs is not None]
        if len(known) < len(of_ranks):
            return self.every
        newest = [max(values) for values in zip(*known, strict=True)]
        before = self._average or newest
        self._average = [_WEIGHT * new + (1 - _WEIGHT) * old for new, old in zip(newest, before, strict=True)]
        step, stops, writes, slows = self._average
        cost = SaveCost(step_ns=step, stops_ns=stops, writes_ns=writes, slows_ns=slows)
        wanted = cost.shortest_within(self._max_overhead)
        if wanted > self.every:
            self.every = min(wanted, 2 * self.every)
        elif self.every > _LOWERED_FROM * wanted:
            self.every = max(wanted, self.every // 2)
        return self.every
