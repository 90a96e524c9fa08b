"""Changes of times with their intervals: from steps before and steps after."""

from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np

from esprof.analyzers.comparison.answer import StepChange
from esprof.analyzers.steps.job_steps import ComparedPhase
from esprof.core.statistics import MIN_REPLICATES, block_length, bootstrap, rank_test, welch_margin
from esprof.core.types import ns, us

CONFIDENCE = 0.95
"""Of all intervals of a table together (Bonferroni)."""

_POWERED = 1.43
"""Change that is found four times in five, in half widths of the 95 % interval: (1.96 + 0.84) / 1.96."""

_Statistic = Callable[[np.ndarray], np.ndarray]
"""Maps series, float64[series, steps], to the statistic of each, float64[series]."""


class Figures(TypedDict):
    """The fields of a `TimeChange`."""

    before_us: float
    after_us: float
    change_us: float
    low_us: float | None
    high_us: float | None
    noise: bool


def figures(before_ns: float, after_ns: float, margin: float) -> Figures:
    """The fields of a change between two times, ns, with half the width of its interval, ns; infinite if unknown."""
    before_us, after_us = us(before_ns), us(after_ns)
    change = after_ns - before_ns
    if not np.isfinite(margin):
        return _figures(before_us, after_us, None, None)
    return _figures(before_us, after_us, us(change - margin), us(change + margin))


def _figures(before_us: float, after_us: float, low_us: float | None, high_us: float | None) -> Figures:
    return Figures(
        before_us=before_us,
        after_us=after_us,
        change_us=round(after_us - before_us, 3),
        low_us=low_us,
        high_us=high_us,
        noise=low_us is None or high_us is None or low_us <= 0 <= high_us,
    )


def excused(found: Figures, waited_us: float) -> Figures:
    """The figures with an interval that also holds what is left if longer (or shorter) waits for a CPU are excused."""
    low, high = found["low_us"], found["high_us"]
    if low is None or high is None or not waited_us:
        return found
    low, high = round(low - max(waited_us, 0), 3), round(high - min(waited_us, 0), 3)
    return Figures(**(found | {"low_us": low, "high_us": high, "noise": low <= 0 <= high}))


def changes(before_ns: np.ndarray, after_ns: np.ndarray, rows: int, correlated: float = 1.0) -> list[Figures]:
    """The changes of the means of the columns of two tables, float64[steps, P] and float64[steps', P], ns.

    The intervals are Welch's. They are wider for a table of several `rows` (Bonferroni), and for steps whose autocorrelation
    time is `correlated`, in steps (`autocorrelation_time`).
    """
    margin = welch_margin(after_ns, before_ns, 1 - (1 - CONFIDENCE) / max(1, rows)) * np.sqrt(correlated)
    means = (before_ns.mean(axis=0), after_ns.mean(axis=0), margin)
    return [figures(*map(float, row)) for row in zip(*means, strict=True)]


def step_change(before_ns: np.ndarray, after_ns: np.ndarray, phase: ComparedPhase) -> StepChange:
    """The change of the mean of these steps. Few profiled steps have Welch's interval, others that of resampled blocks."""
    block = block_length(before_ns, after_ns) if phase == "plain" else 1
    if phase == "plain":
        found = resampled(before_ns, after_ns, mean, block)
    else:
        found = changes(before_ns[:, None], after_ns[:, None], 1)[0]
    one_sided = rank_test(after_ns, before_ns, block), rank_test(before_ns, after_ns, block)
    low, high = found["low_us"], found["high_us"]
    return StepChange(
        **found,
        pct=round(100 * found["change_us"] / found["before_us"], 3),
        p=min(1.0, 2 * min(one_sided)),
        median_before_us=us(float(np.median(before_ns))),
        median_after_us=us(float(np.median(after_ns))),
        steps_before=len(before_ns),
        steps_after=len(after_ns),
        block=block,
        detectable_us=None if low is None or high is None else round(_POWERED * (high - low) / 2, 3),
    )


def resampled(before_ns: np.ndarray, after_ns: np.ndarray, statistic: _Statistic, block: int, rows: int = 1) -> Figures:
    """The change of a statistic of many steps, with the interval of a moving-block bootstrap, for a table of `rows`."""
    rng = np.random.default_rng(0)

    def drawn(of: np.ndarray) -> np.ndarray:
        return bootstrap(len(of), block, lambda at: statistic(of[at]), MIN_REPLICATES, rng)

    outside = (1 - CONFIDENCE) / (2 * rows)
    low, high = np.quantile(drawn(after_ns) - drawn(before_ns), [outside, 1 - outside]).tolist()
    before, after = (float(statistic(of[None])[0]) for of in (before_ns, after_ns))
    return _figures(us(before), us(after), us(low), us(high))


def mean(steps: np.ndarray) -> np.ndarray:
    found: np.ndarray = steps.mean(axis=-1)
    return found


def median(steps: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.asarray(np.median(steps, axis=-1))
    return found


def above_median(steps: np.ndarray) -> np.ndarray:
    """By how much the mean exceeds the median: by slow steps."""
    above: np.ndarray = mean(steps) - median(steps)
    return above


def margin_ns(of: Figures) -> float:
    """Half the width of an interval, ns; infinite if unknown."""
    low, high = of["low_us"], of["high_us"]
    return np.inf if low is None or high is None else ns(high - low) / 2


def largest(found: Sequence[Figures]) -> list[int]:
    """Positions of these changes, the largest first."""
    return sorted(range(len(found)), key=lambda at: -abs(found[at]["change_us"]))
