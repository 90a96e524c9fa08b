"""Trying a plan in blocks of steps with it and without it, by turns: what else changes meanwhile cannot pass for its
gain.

A job that drifts gets slower or faster all the time; so each block with the plan is held against the blocks without it
on both sides, between which a steady drift cancels out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from esprof.core.statistics import mean_margin, trimmed_mean

SETTLES = 1
"""Steps after a change that are no measure: caches are cold, loaders start."""

_MIN_STEPS_OF_BLOCK = 3
"""Steps of a block that make it worth comparing."""


@dataclass(frozen=True)
class TrialSchedule:
    """Which steps a plan holds for: `blocks` times `window` steps with it, and as many without it after each."""

    first: int
    window: int
    blocks: int

    @property
    def end(self) -> int:
        """The first step after it."""
        return self.first + 2 * self.blocks * self.window

    def block(self, step: int) -> int:
        """Number of the block that a step is in, from 0; the plan holds in even ones."""
        return (step - self.first) // self.window

    def has_plan(self, step: int) -> bool:
        return self.first <= step < self.end and self.block(step) % 2 == 0

    def starts_block(self, step: int) -> bool:
        """Whether a block begins with this step."""
        return self.first < step < self.end and (step - self.first) % self.window == 0


def typical(took_us: Sequence[float]) -> float:
    """The mean of the middle steps, by their length.

    One slow step should not count, but where steps are of two kinds, as over a link that loses packets, a median would
    be that of the one or the other by chance.
    """
    return float(trimmed_mean(took_us))


@dataclass(frozen=True)
class Gain:
    """By how much steps are shorter with the plan, us, with the 95 % interval of that; and the means with and
    without."""

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
    """How much longer steps with the plan may be, relative, before the trial is broken off."""
    earlier_us: Sequence[float]
    """The last steps before it."""
    took_us: dict[int, list[float]] = field(default_factory=dict)
    """Those of each block."""

    def note(self, step: int, took_us: float) -> None:
        schedule = self.schedule
        if step < schedule.end and (step - schedule.first) % schedule.window >= SETTLES:
            self.took_us.setdefault(schedule.block(step), []).append(took_us)

    def is_over(self, step: int) -> bool:
        """Whether this step was the last one."""
        return step + 1 >= self.schedule.end

    def is_hopeless(self, step: int) -> bool:
        """Whether, at the end of the first block, no step with the plan was as short as any before it, by the
        margin."""
        if step + 1 != self.schedule.first + self.schedule.window or not self.earlier_us:
            return False
        first = self.took_us.get(0, [])
        return len(first) >= _MIN_STEPS_OF_BLOCK and min(first) > (1 + self.margin) * max(self.earlier_us)

    def gain(self) -> Gain | None:
        """None where less than two blocks with the plan can be compared.

        The interval is Student's t of the differences. Neighbours share a block without the plan, so that they are
        alike by a sixth of their variance: that of their mean is larger by 1 + (n - 1) / 3n, and their own comes out
        smaller by 1 - 1 / 3n.
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
