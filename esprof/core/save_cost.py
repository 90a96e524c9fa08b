"""What saves cost a job at an interval, and which interval to choose: closed forms.

CheckFreq (FAST 2021, §4) chooses the shortest interval within a bound; Young (CACM 17(9), 1974) and Daly (FGCS 22(3), 2006)
the interval that loses least time to saves and failures together.
"""

import math
from dataclasses import dataclass

FLAT = 0.01
"""Intervals that lose at most this share of the run time more than the best one are as good in practice."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """How often a job fails; times in ns."""

    mtbf_ns: float
    """Mean time between two failures of the whole job: that of a node, divided by the number of nodes."""
    restart_ns: float = 0.0
    """Time from a failure to the first new step: finding it, starting, and loading the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """Mean times of a job that saves every `every` steps, ns."""

    step_ns: float
    """A step while no save runs."""
    stops_ns: float
    """Time by which a save prolongs the step in which it begins."""
    writes_ns: float = 0.0
    """Time from there until the save is durable, if it is written in the background; one at a time."""
    slows_ns: float = 0.0
    """Time by which writing in the background prolongs a step."""

    @property
    def shortest(self) -> int:
        """The shortest interval, in steps, at which no save waits for the one before it."""
        return 1 + math.ceil(self.writes_ns / self.step_ns)

    def lost_ns(self, every: int) -> float:
        """Time that one save costs at this interval: it stops a step, waits for the save before it, and slows steps."""
        beside = self.writes_ns / self.step_ns
        waits = max(0.0, self.writes_ns - (every - 1) * self.step_ns)
        return self.stops_ns + waits + self.slows_ns * min(every - 1.0, beside)

    def overhead(self, every: int) -> float:
        """Time lost to saves, as a share of the steps without them."""
        return self.lost_ns(every) / (every * self.step_ns)

    def shortest_within(self, share: float) -> int:
        """The shortest interval whose overhead is at most `share`, and at which no save waits for another."""
        least = self.lost_ns(self.shortest) / (share * self.step_ns)
        return max(self.shortest, math.ceil(least * (1 - 1e-12)))

    def waste(self, every: int, failures: Failures) -> float:
        """Time lost to saves and failures, as a share of the steps without them.

        A failure loses half an interval, the save that was being written, and the restart.
        """
        lost = every * self.step_ns / 2 + self.writes_ns + failures.restart_ns
        return self.overhead(every) + lost / (failures.mtbf_ns + failures.restart_ns)

    def best(self, failures: Failures) -> int:
        """The interval that wastes least, at which no save waits for another."""
        period = math.sqrt(2 * self.lost_ns(self.shortest) * (failures.mtbf_ns + failures.restart_ns))
        near = max(self.shortest, math.floor(period / self.step_ns))
        return min((near, near + 1), key=lambda every: self.waste(every, failures))

    def flat_range(self, failures: Failures) -> tuple[int, int]:
        """The shortest and the longest interval that waste at most `FLAT` of the run time more than the best."""
        least = self.waste(self.best(failures), failures)
        cycle = failures.mtbf_ns + failures.restart_ns
        # waste = lost/x + x/(2 cycle) + fixed, for a period x: the range lies between the roots of a square.
        allowed = least + FLAT * (1 + least) - (self.writes_ns + failures.restart_ns) / cycle
        root = math.sqrt(max(0.0, allowed**2 - 2 * self.lost_ns(self.shortest) / cycle))
        low, high = (cycle * (allowed + sign * root) / self.step_ns for sign in (-1, 1))
        return max(self.shortest, math.ceil(low)), max(self.shortest, math.floor(high))

    def worst_loss_ns(self, every: int) -> float:
        """Most work that a failure can lose: an interval, and the save that was not durable yet."""
        return every * self.step_ns + self.writes_ns
