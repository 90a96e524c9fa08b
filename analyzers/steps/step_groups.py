"""The slow steps of a run, grouped by when they come: where an epoch begins, every so many steps, in a row, now and then."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.statistics import mean_margin

SLOW_TIMES_MEDIAN = 1.3
"""A step is slow that takes more than so many times the median."""

AT_RANDOM = "now and then"

MIN_STEPS_OF_A_RULE = 4
"""Slow steps from which on a period may be told."""

MIN_STEPS_AT_RANDOM = 3
"""Slow steps, without a rule by which they come, from which on they are looked at: fewer may be anything."""

WARM_UP_SHARE = 0.1
"""Slow steps in so large a share of the run, from its begin, may be what a job does only once, such as compiling."""

MIN_STEPS = 16
"""Steps from which on groups may be told: among fewer, chance makes one too often."""

MIN_SHARE_DUE = 0.8
"""Least share of the steps that are due that must be slow, and, of a period or a row, of the slow steps that must be due."""

MIN_TIMES_THE_EXCESS = 2.0
"""Slow steps that take so many times as much too long as others are looked at without those: what any machine does to some
steps must not hide what a job does to others."""

MIN_EPOCHS = 2
"""Slow beginnings of epochs, the first one aside, from which on they are a group whatever makes them slow."""

AT_EPOCHS = "where an epoch begins"

MAX_SHARE_OF_EPOCHS = 0.34
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
    row: tuple[int, int] | None = None
    """The first and the last of steps that are slow one after the other; None where that is not their rule."""

    @property
    def excess_ns(self) -> float:
        """How much longer a slow step takes than a usual one, ns."""
        return self.between(self.took_ns)

    def between(self, values: np.ndarray) -> float:
        """By how much the mean of `values`, float64[steps], is greater in slow steps than in usual ones."""
        return float(values[self.is_slow].mean() - values[self.is_usual].mean())

    @property
    def measured(self) -> MeasuredPrice:
        """What the mean step would gain, were these steps like the usual ones."""
        share, of_usual = float(self.is_slow.mean()), mean_margin(self.took_ns[self.is_usual])
        if self.is_regular:
            of_slow = share * mean_margin(self.took_ns[self.is_slow])
        else:  # How many there are is chance, too.
            of_slow = mean_margin(np.where(self.is_slow, self.took_ns - self.took_ns[self.is_usual].mean(), 0.0))
        return MeasuredPrice(
            saving_ns=share * self.excess_ns,
            margin_ns=float(np.hypot(of_slow, share * of_usual)),
            step_ns=float(self.took_ns.mean()),
        )

    @property
    def is_regular(self) -> bool:
        """Whether there will be as many in any other part of the run."""
        return self.every is not None or (self.when == AT_EPOCHS and self.is_slow.sum() >= MIN_EPOCHS)


def slow_groups(job: JobSteps) -> list[SlowGroup]:
    """The groups of slow steps among those that ran without the profiler; none where these are too few."""
    steps = job.numbers("plain")
    if len(steps) < MIN_STEPS:
        return []
    took = job.durations_ns(steps).astype(np.float64)
    is_slow = took > SLOW_TIMES_MEDIAN * np.median(took)
    left = is_slow.copy()
    found: list[SlowGroup] = []
    begins = np.isin(steps, job.epochs)
    of_epochs = is_slow & begins
    if of_epochs.any() and of_epochs.sum() >= MIN_SHARE_DUE * begins.sum() and begins.mean() <= MAX_SHARE_OF_EPOCHS:
        found.append(SlowGroup(steps, took, of_epochs, ~is_slow, AT_EPOCHS))
        left &= ~begins
    while (group := _by_rule(steps, took, left, is_slow)) is not None:
        found.append(group)
        left = left & ~group.is_slow
    if (left & (np.arange(len(steps)) >= WARM_UP_SHARE * len(steps))).sum() >= MIN_STEPS_AT_RANDOM:
        found.append(SlowGroup(steps, took, left, ~is_slow, AT_RANDOM))
    return found


def _by_rule(steps: np.ndarray, took: np.ndarray, left: np.ndarray, is_slow: np.ndarray) -> SlowGroup | None:
    """The largest group among the slow steps that are `left` that comes every so many steps, or in a row."""
    for some in _from_slow_to_slowest(took - np.median(took), left):
        every = _period(steps, some)
        if every is not None:
            return SlowGroup(steps, took, some, ~is_slow, f"every {every} steps", every=every)
        row = _row(some)
        if row is not None:
            in_row = some.copy()
            in_row[: row[0]] = in_row[row[1] + 1 :] = False
            first, last = int(steps[row[0]]), int(steps[row[1]])
            return SlowGroup(steps, took, in_row, ~is_slow, f"from step {first} to step {last}", row=(first, last))
    return None


def _from_slow_to_slowest(excess: np.ndarray, left: np.ndarray) -> Iterator[np.ndarray]:
    """The steps that are `left`, then those that take `MIN_TIMES_THE_EXCESS` too long, and so on; bool[steps] each."""
    if left.any():
        yield left
    ranked = np.sort(excess[left])
    for at in np.flatnonzero(ranked[1:] >= MIN_TIMES_THE_EXCESS * ranked[:-1]).tolist():
        yield left & (excess >= ranked[at + 1])


def _row(is_slow: np.ndarray) -> tuple[int, int] | None:
    """(first, last) of the steps in which nearly all are slow, and which are nearly all that are; None for none.

    A few that are slow elsewhere do not count, nor does the row that a job's start may be.
    """
    positions = np.flatnonzero(is_slow)
    aside = int((1 - MIN_SHARE_DUE) / 2 * len(positions))
    if len(positions) - 2 * aside < MIN_STEPS_OF_A_RULE:
        return None
    first, last = int(positions[aside]), int(positions[-1 - aside])
    # What lies aside may belong to the row nonetheless.
    while first > 0 and is_slow[first - 1]:
        first -= 1
    while last + 1 < len(is_slow) and is_slow[last + 1]:
        last += 1
    within = int(is_slow[first : last + 1].sum())
    is_row = within >= MIN_SHARE_DUE * max(last - first + 1, len(positions)) and first >= WARM_UP_SHARE * len(is_slow)
    return (first, last) if is_row else None


def _period(steps: np.ndarray, is_slow: np.ndarray) -> int | None:
    """Every how many of `steps` (numbers, ascending) a slow one comes; None where they come at random.

    Windows take steps out of the row, so that a distance may be a multiple of the period.
    """
    slow = steps[is_slow]
    if len(slow) < MIN_STEPS_OF_A_RULE:
        return None
    values, counts = np.unique(np.diff(slow), return_counts=True)
    every = int(values[counts.argmax()])
    # The steps that are due by the most frequent remainder must be slow, and no others.
    remainders, counts = np.unique(slow % every, return_counts=True)
    is_due = steps % every == remainders[counts.argmax()]
    hits = int(np.count_nonzero(is_due & is_slow))
    is_regular = MIN_STEPS_OF_A_RULE <= hits >= MIN_SHARE_DUE * max(int(np.count_nonzero(is_due)), len(slow))
    return every if every > 1 and is_regular else None
