"""Trial of a plan in alternating blocks of steps with and without it, to separate its gain from other changes.

Each block with the plan is compared with the blocks without it before and after, so that a linear drift of the step time
cancels out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from esprof.core.statistics import mean_margin, trimmed_mean

SETTLES = 1
"""Warm-up steps after a change that do not count: caches are cold, loaders start."""

_MIN_STEPS_OF_BLOCK = 3
"""Minimum number of steps of a block for a comparison."""


@dataclass(frozen=True)
class TrialSchedule:
    """The steps of a trial: `blocks` times `window` steps with the plan, each followed by `window` steps without it."""

    first: int
    window: int
    blocks: int

    @property
    def end(self) -> int:
        """The first step after the trial."""
        return self.first + 2 * self.blocks * self.window

    def block(self, step: int) -> int:
        """Number of the block of a step, from 0; even blocks have the plan."""
        return (step - self.first) // self.window

    def has_plan(self, step: int) -> bool:
        return self.first <= step < self.end and self.block(step) % 2 == 0

    def starts_block(self, step: int) -> bool:
        """Whether a block begins with this step."""
        return self.first < step < self.end and (step - self.first) % self.window == 0


def typical(took_us: Sequence[float]) -> float:
    """The trimmed mean of step times.

    Robust against single slow steps. Unlike a median it is also stable if step times are bimodal, as on a link that loses
    packets.
    """
    return float(trimmed_mean(took_us))


@dataclass(frozen=True)
class Gain:
    """Reduction of the step time with the plan, us, with its 95 % confidence interval; and the means with and without."""

    before_us: float
    after_us: float
    us: float
    low_us: float
    high_us: float


@dataclass
class TrialSteps:
    """The steps of a trial so far."""

    schedule: TrialSchedule
    margin: float
    """Relative slowdown with the plan at which the trial ends early."""
    earlier_us: Sequence[float]
    """The last steps before the trial, us."""
    took_us: dict[int, list[float]] = field(default_factory=dict)
    """Step times of each block, us."""

    def note(self, step: int, took_us: float) -> None:
        schedule = self.schedule
        if step < schedule.end and (step - schedule.first) % schedule.window >= SETTLES:
            self.took_us.setdefault(schedule.block(step), []).append(took_us)

    def is_over(self, step: int) -> bool:
        """Whether this was the last step of the trial."""
        return step + 1 >= self.schedule.end

    def is_hopeless(self, step: int) -> bool:
        """Whether, at the end of the first block, every step with the plan was slower than all before it, by the margin."""
        if step + 1 != self.schedule.first + self.schedule.window or not self.earlier_us:
            return False
        first = self.took_us.get(0, [])
        return len(first) >= _MIN_STEPS_OF_BLOCK and min(first) > (1 + self.margin) * max(self.earlier_us)

    def gain(self) -> Gain | None:
        """The gain; None if fewer than two blocks with the plan can be compared.

        The interval is Student's t of the n differences. Adjacent differences share a block without the plan and have a
        covariance of a sixth of their variance: the variance of their mean is larger by 1 + (n - 1) / 3n, and their sample
        variance is smaller by 1 - 1 / 3n.
        """
        blocks = {number: typical(took) for number, took in self.took_us.items() if len(took) >= _MIN_STEPS_OF_BLOCK}
        if len(self.earlier_us) >= _MIN_STEPS_OF_BLOCK:
            blocks[-1] = typical(self.earlier_us)
        gains, after = [], []
        for number in range(0, 2 * self.schedule.blocks, 2):
            neighbours = [blocks[side] for side in (number - 1, number + 1) if side in blocks]
            if number in blocks and neighbours:
                gains.append(fmean(neighbours) - blocks[number])
                after.append(blocks[number])
        count = len(gains)
        if count < 2:
            return None
        shared = math.sqrt((1 + (count - 1) / (3 * count)) / (1 - 1 / (3 * count)))
        half, mean = mean_margin(gains) * shared, fmean(gains)
        return Gain(fmean(after) + mean, fmean(after), mean, mean - half, mean + half)
