"""Slow steps of a run, grouped by when they occur: at the start of an epoch, periodically, in a row, or at random."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.statistics import least_of_events, mean_margin

SLOW_TIMES_MEDIAN = 1.3
"""A step is slow if it takes more than this multiple of the median."""

AT_RANDOM = "now and then"

MIN_STEPS_OF_A_RULE = 4
"""Least number of slow steps for a period or a row."""

MIN_STEPS_AT_RANDOM = 3
"""Least number of slow steps at random times to form a group."""

WARM_UP_SHARE = 0.1
"""Slow steps in this first share of the run may be one-time work, such as compiling."""

MIN_STEPS = 16
"""Least number of steps for groups: among fewer, chance makes one too often."""

MIN_SHARE_DUE = 0.8
"""Least share of the expected steps that must be slow; for a period or a row, also of the slow steps that are expected."""

MIN_TIMES_THE_EXCESS = 2.0
"""Slow steps whose excess time is this multiple of the next lower one are also examined without the less slow steps, so that
noise of the machine does not hide a pattern of the job."""

MIN_EPOCHS = 2
"""Least number of slow epoch starts, excluding the first, to count as regular."""

AT_EPOCHS = "where an epoch begins"

MAX_SHARE_OF_EPOCHS = 0.34
"""Largest share of all steps that start an epoch; above it, they cannot be distinguished from the others."""


@dataclass(frozen=True)
class SlowGroup:
    """Slow steps with one pattern. `took_ns`, float64[steps], holds the duration of each of the job's `steps`."""

    steps: np.ndarray
    took_ns: np.ndarray
    is_slow: np.ndarray
    """The steps of the group, bool[steps]."""
    is_usual: np.ndarray
    """The steps that are in no group, bool[steps]."""
    when: str
    """The pattern as text."""
    every: int | None = None
    """Period in steps; None if they are not periodic."""
    row: tuple[int, int] | None = None
    """First and last of consecutive slow steps; None if they are not consecutive."""

    @property
    def excess_ns(self) -> float:
        """Excess of a mean slow step over a usual one, ns."""
        return self.between(self.took_ns)

    def between(self, values: np.ndarray) -> float:
        """Mean of `values`, float64[steps], in slow steps minus that in usual steps."""
        return float(values[self.is_slow].mean() - values[self.is_usual].mean())

    @property
    def measured(self) -> MeasuredPrice:
        """Saving of the mean step if these steps took as long as usual ones."""
        share, of_usual = float(self.is_slow.mean()), mean_margin(self.took_ns[self.is_usual])
        if self.is_regular:
            of_slow = share * mean_margin(self.took_ns[self.is_slow])
        else:  # Their number is random, too.
            of_slow = mean_margin(np.where(self.is_slow, self.took_ns - self.took_ns[self.is_usual].mean(), 0.0))
        return MeasuredPrice(
            saving_ns=share * self.excess_ns,
            margin_ns=float(np.hypot(of_slow, share * of_usual)),
            step_ns=float(self.took_ns.mean()),
        )

    @property
    def measured_events(self) -> MeasuredPrice:
        """`measured`, if each slow step has a known cause, so that only the number of those at random times is random."""
        if self.when != AT_RANDOM:
            return self.measured
        excess_ns = np.where(self.is_slow, self.took_ns - self.took_ns[self.is_usual].mean(), 0.0)
        return replace(self.measured, least_ns=least_of_events(excess_ns))

    @property
    def is_regular(self) -> bool:
        """Whether the same number is expected in any other section of the run."""
        return self.every is not None or (self.when == AT_EPOCHS and self.is_slow.sum() >= MIN_EPOCHS)


def slow_groups(job: JobSteps) -> list[SlowGroup]:
    """Groups of slow steps among the steps without profiler; none if there are too few steps."""
    steps = job.numbers("plain")
    if len(steps) < MIN_STEPS:
        return []
    took = job.durations_ns(steps).astype(np.float64)
    is_slow = took > SLOW_TIMES_MEDIAN * np.median(took)
    left = is_slow.copy()
    found: list[SlowGroup] = []
    begins = np.isin(steps, job.epochs)
    of_epochs = is_slow & begins
    are_slow = of_epochs.any() and of_epochs.sum() >= MIN_SHARE_DUE * begins.sum()
    if are_slow and begins.mean() <= MAX_SHARE_OF_EPOCHS and not _are_of_a_period(steps, took, is_slow, of_epochs):
        found.append(SlowGroup(steps, took, of_epochs, ~is_slow, AT_EPOCHS))
        left &= ~begins
    while (group := _by_rule(steps, took, left, is_slow)) is not None:
        found.append(group)
        left = left & ~group.is_slow
    if (left & (np.arange(len(steps)) >= WARM_UP_SHARE * len(steps))).sum() >= MIN_STEPS_AT_RANDOM:
        found.append(SlowGroup(steps, took, left, ~is_slow, AT_RANDOM))
    return found


def _are_of_a_period(steps: np.ndarray, took: np.ndarray, is_slow: np.ndarray, of_epochs: np.ndarray) -> bool:
    """Whether the slow epoch starts are steps of a shorter period, as of a validation, and no slower than its others."""
    others, every = is_slow & ~of_epochs, _period(steps, is_slow)
    if every is None or others.sum() < MIN_STEPS_OF_A_RULE:
        return False
    is_due = steps[of_epochs] % every == np.bincount(steps[others] % every).argmax()
    return bool(is_due.all()) and bool(took[of_epochs].mean() <= SLOW_TIMES_MEDIAN * took[others].mean())


def _by_rule(steps: np.ndarray, took: np.ndarray, left: np.ndarray, is_slow: np.ndarray) -> SlowGroup | None:
    """The largest periodic or consecutive group among the slow steps `left`."""
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
    """The steps `left`, then only those above each jump of the excess by `MIN_TIMES_THE_EXCESS`; bool[steps] each."""
    if left.any():
        yield left
    ranked = np.sort(excess[left])
    for at in np.flatnonzero(ranked[1:] >= MIN_TIMES_THE_EXCESS * ranked[:-1]).tolist():
        yield left & (excess >= ranked[at + 1])


def _row(is_slow: np.ndarray) -> tuple[int, int] | None:
    """(first, last) position of a row in which nearly all steps are slow and which holds nearly all slow steps.

    A few slow steps elsewhere are ignored. None if there is no row, or if it may be the job's warm-up.
    """
    positions = np.flatnonzero(is_slow)
    aside = int((1 - MIN_SHARE_DUE) / 2 * len(positions))
    if len(positions) - 2 * aside < MIN_STEPS_OF_A_RULE:
        return None
    first, last = int(positions[aside]), int(positions[-1 - aside])
    # The ignored ones may be next to the row and belong to it.
    while first > 0 and is_slow[first - 1]:
        first -= 1
    while last + 1 < len(is_slow) and is_slow[last + 1]:
        last += 1
    within = int(is_slow[first : last + 1].sum())
    is_row = within >= MIN_SHARE_DUE * max(last - first + 1, len(positions)) and first >= WARM_UP_SHARE * len(is_slow)
    return (first, last) if is_row else None


def _period(steps: np.ndarray, is_slow: np.ndarray) -> int | None:
    """Period of the slow ones among `steps` (numbers, ascending); None if they are not periodic.

    Windows remove steps, so that a distance may be a multiple of the period.
    """
    slow = steps[is_slow]
    if len(slow) < MIN_STEPS_OF_A_RULE:
        return None
    values, counts = np.unique(np.diff(slow), return_counts=True)
    every = int(values[counts.argmax()])
    # Exactly the steps with the most frequent remainder should be slow.
    remainders, counts = np.unique(slow % every, return_counts=True)
    is_due = steps % every == remainders[counts.argmax()]
    hits = int(np.count_nonzero(is_due & is_slow))
    is_regular = MIN_STEPS_OF_A_RULE <= hits >= MIN_SHARE_DUE * max(int(np.count_nonzero(is_due)), len(slow))
    return every if every > 1 and is_regular else None
