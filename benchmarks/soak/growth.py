"""Growth of what a soak holds, over the steps of its job."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import theilslopes

WARM_STEPS = 1_200
"""Steps of a process before its samples count: the page keeps the last 1,000 steps, the job 256, and libraries load at first
use."""
_LEAST_PER_1000 = 0.02
"""Slower growth, in MiB, descriptors, threads or files, does not count: it is 1 in 50,000 steps. The job's history grows by
0.014 MiB, until it is renamed at 8 MiB."""
_LEAST_SAMPLES = 8
_MOST_SAMPLES = 800
"""A slope takes the square of the samples in time."""


@dataclass(frozen=True)
class Sample:
    """One value of one process or folder."""

    what: str
    of: int
    """The process, or 0 for a folder."""
    step: int
    value: float


@dataclass(frozen=True)
class Growth:
    """A line through the samples of all processes, each at a level of its own: Theil-Sen, with a 95 % interval."""

    per_1000: float
    low: float
    high: float
    level: float
    """Median of all samples."""
    samples: int

    @property
    def is_flat(self) -> bool:
        """Whether no growth is seen, or less than a thousandth of the level in 1,000 steps."""
        return self.low <= 0 or self.per_1000 < max(1e-3 * self.level, _LEAST_PER_1000)


def growth(samples: Sequence[Sample]) -> Growth | None:
    """The growth of one quantity; None with too few samples."""
    steps, values, level = [], [], []
    for of in {sample.of for sample in samples}:
        mine = [sample for sample in samples if sample.of == of]
        mine = [sample for sample in mine if sample.step >= mine[0].step + WARM_STEPS]
        if len(mine) < _LEAST_SAMPLES:
            continue
        at, value = np.array([sample.step for sample in mine]), np.array([sample.value for sample in mine])
        steps.append(at - at.mean())
        values.append(value - value.mean())
        level += value.tolist()
    if not steps:
        return None
    x, y = np.concatenate(steps), np.concatenate(values)
    some = np.linspace(0, len(x) - 1, min(len(x), _MOST_SAMPLES)).astype(int)
    if not np.ptp(x[some]):
        return None
    if not np.ptp(y[some]):
        return Growth(0.0, 0.0, 0.0, float(np.median(level)), len(x))
    slope, _, low, high = (1000 * float(one) for one in theilslopes(y[some], x[some]))
    return Growth(slope, low, high, float(np.median(level)), len(x))
