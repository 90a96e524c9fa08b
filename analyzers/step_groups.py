"""The slow steps of a run, grouped by when they come: every so many steps, where an epoch begins, or now and then."""

from dataclasses import dataclass

import numpy as np

from esprof.analyzers import job_steps
from esprof.analyzers.rule import Measured
from esprof.replay.whatif.margins import mean_margin
from esprof.trace.run import Run

SLOW = 1.3
"""A step is slow that takes more than so many times the median."""

AT_RANDOM = "now and then"

FEWEST = 4
"""Slow steps from which on a period may be told."""

FEWEST_AT_RANDOM = 3
"""Slow steps, without a rule by which they come, from which on they are looked at: fewer may be anything."""

WARM_UP = 0.1
"""Slow steps in so large a share of the run, from its begin, may be what a job does only once, such as compiling."""

FEWEST_STEPS = 16
"""Steps from which on groups may be told: among fewer, chance makes one too often."""

REGULAR = 0.8
"""Least share of the steps that are due that must be slow, and, of a period, of the slow steps that must be due."""

FEWEST_EPOCHS = 2
"""Slow beginnings of epochs, the first one aside, from which on they are a group."""

MOST_BORDERS = 0.34
"""Share of all steps up to which the first ones of epochs may be told from others."""


@dataclass(frozen=True)
class SlowGroup:
    """Slow steps that come by one rule. `took_ns` of all steps of the job, float64[steps], by number, `steps`."""

    steps: np.ndarray
    took_ns: np.ndarray
    is_slow: np.ndarray
    """The steps of the group, bool[steps]."""
    is_usual: np.ndarray
    """The steps that are in no group, bool[steps]."""
    when: str
    """When they come, as text."""
    every: int | None = None
    """Every how many steps they come; None where that is not their rule."""

    @property
    def excess_ns(self) -> float:
        """How much longer a slow step takes than a usual one, ns."""
        return self.between(self.took_ns)

    def between(self, values: np.ndarray) -> float:
        """By how much the mean of `values`, float64[steps], is greater in slow steps than in usual ones."""
        return float(values[self.is_slow].mean() - values[self.is_usual].mean())

    @property
    def measured(self) -> Measured:
        """What the mean step would gain, were these steps like the usual ones."""
        share = float(self.is_slow.mean())
        of_slow, of_usual = (mean_margin(self.took_ns[mask]) for mask in (self.is_slow, self.is_usual))
        return Measured(
            saving_ns=share * self.excess_ns,
            margin_ns=share * float(np.hypot(of_slow, of_usual)),
            step_ns=float(self.took_ns.mean()),
        )


def slow_groups(run: Run) -> list[SlowGroup]:
    """The groups of slow steps among those that ran without the profiler; none where these are too few."""
    steps = job_steps.numbers(run, "plain")
    if len(steps) < FEWEST_STEPS:
        return []
    took = job_steps.durations_ns(run, steps).astype(np.float64)
    is_slow = took > SLOW * np.median(took)
    left = is_slow.copy()
    found: list[tuple[np.ndarray, str, int | None]] = []
    begins = np.isin(steps, job_steps.epochs(run))
    of_epochs = is_slow & begins
    if of_epochs.sum() >= FEWEST_EPOCHS and of_epochs.sum() >= REGULAR * begins.sum() and begins.mean() <= MOST_BORDERS:
        found.append((of_epochs, "where an epoch begins", None))
        left &= ~begins
    every = _period(steps, left)
    if every is not None:
        found.append((left, f"every {every} steps", every))
    elif (left & (np.arange(len(steps)) >= WARM_UP * len(steps))).sum() >= FEWEST_AT_RANDOM:
        found.append((left, AT_RANDOM, None))
    return [SlowGroup(steps, took, slow, ~is_slow, when, k) for slow, when, k in found]


def _period(steps: np.ndarray, is_slow: np.ndarray) -> int | None:
    """Every how many of `steps` (numbers, ascending) a slow one comes; None where they come at random.

    Windows take steps out of the row, so that a distance may be a multiple of the period.
    """
    slow = steps[is_slow]
    if len(slow) < FEWEST:
        return None
    values, counts = np.unique(np.diff(slow), return_counts=True)
    every = int(values[counts.argmax()])
    # The steps that are due by the most frequent remainder must be slow, and no others.
    remainders, counts = np.unique(slow % every, return_counts=True)
    is_due = steps % every == remainders[counts.argmax()]
    hits = int(np.count_nonzero(is_due & is_slow))
    is_regular = FEWEST <= hits >= REGULAR * max(int(np.count_nonzero(is_due)), len(slow))
    return every if every > 1 and is_regular else None
