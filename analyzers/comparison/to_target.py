"""Does B reach a loss sooner than A? Times to the target of several trainings of each.

Trainings that never reach the target are censored: they count as slower than all others. The p-value is that of the exact
permutation test on ranks (Mann and Whitney, Annals of Mathematical Statistics 18(1), 1947, with ties).
"""

import math
from collections.abc import Sequence

import numpy as np

from esprof.analyzers.comparison.evaluations import Evaluations
from esprof.analyzers.comparison.target_answer import (
    Better,
    MeasureName,
    NearbyTarget,
    Outcome,
    RunToTarget,
    TargetAnswer,
    TargetMeasure,
)
from esprof.core.errors import UsageError
from esprof.core.readable import decimal
from esprof.core.statistics import MIN_REPLICATES, probability_larger

ALPHA = 0.05
_NEARBY = (-0.05, -0.02, -0.01, 0.01, 0.02, 0.05)
"""Relative distances of the other targets."""
_MAX_ASSIGNMENTS = 200_000
"""Assignments of trainings to sides that are counted: all of those of ten and ten. With more, so many are drawn."""
_WORDS: dict[MeasureName, str] = {"seconds": "seconds", "steps": "steps", "seconds_per_step": "seconds of a step"}


class _Side:
    """The trainings of one side, at one target. Arrays float64[trainings]: infinite where the target is not reached."""

    def __init__(self, logs: Sequence[Evaluations], target: float, better: Better, window: int) -> None:
        self.logs = logs
        self.at = [_reached(log.value, target, better, window) for log in logs]

    @property
    def reached(self) -> int:
        return sum(at is not None for at in self.at)

    def measure(self, name: MeasureName) -> np.ndarray:
        if name == "seconds_per_step":
            return np.array([_seconds_per_step(log) for log in self.logs])
        columns = [log.time_s if name == "seconds" else log.step for log in self.logs]
        reached = (_value(column, at) for column, at in zip(columns, self.at, strict=True))
        return np.array([math.inf if value is None else value for value in reached])

    def described(self, better: Better) -> tuple[RunToTarget, ...]:
        best = min if better == "lower" else max
        return tuple(
            RunToTarget(
                path=str(log.path),
                evaluations=len(log.value),
                best=float(best(log.value)),
                reached=at is not None,
                step=_value(log.step, at),
                step_before=_value(log.step, _before(at)),
                seconds=_value(log.time_s, at),
                seconds_before=_value(log.time_s, _before(at)),
            )
            for log, at in zip(self.logs, self.at, strict=True)
        )


def compare_to_target(
    a: Sequence[Evaluations], b: Sequence[Evaluations], target: float, better: Better = "lower", window: int = 1
) -> TargetAnswer:
    """Compare trainings by the first evaluation at which the median of the last `window` ones reaches `target`.

    Raises UsageError if neither seconds nor steps are in all logs.
    """
    sides = _Side(a, target, better, window), _Side(b, target, better, window)
    declined = _declined([*a, *b])
    names = [name for name in _WORDS if name not in declined]
    if not names:
        raise UsageError(
            "some of the logs have only steps, and others only times", remedy="Compare logs that have one of both."
        )
    measures = tuple(_measured(name, *(side.measure(name) for side in sides)) for name in names)
    smallest = _smallest_p(len(a), len(b))
    first = [side.measure(names[0]) for side in sides]
    outcome = _outcome(first[0], first[1], measures[0].p, smallest)
    return TargetAnswer(
        target=target,
        better=better,
        window=window,
        outcome=outcome,
        verdict=_verdict(outcome, measures[0], sides, smallest),
        a=sides[0].described(better),
        b=sides[1].described(better),
        measures=measures,
        smallest_p=smallest,
        nearby=tuple(_nearby(a, b, target * (1 + by), better, window, names[0]) for by in _NEARBY),
        declined=declined,
    )


def _reached(value: np.ndarray, target: float, better: Better, window: int) -> int | None:
    """Index of the evaluation that finds the target reached; None if none does. Looks back only."""
    if len(value) < window:
        return None
    medians = np.median(np.lib.stride_tricks.sliding_window_view(value, window), axis=1)
    found = np.flatnonzero(medians <= target if better == "lower" else medians >= target)
    return int(found[0]) + window - 1 if len(found) else None


def _seconds_per_step(log: Evaluations) -> float:
    """Mean time of a step of the whole training, s: trainings that never reach the target have one, too."""
    assert log.step is not None
    assert log.time_s is not None
    return float(log.time_s[-1] / log.step[-1]) if log.step[-1] else math.inf


def _value(column: np.ndarray | None, at: int | None) -> float | None:
    return None if column is None or at is None or at < 0 else float(column[at])


def _before(at: int | None) -> int | None:
    return None if at is None else at - 1


def _declined(logs: Sequence[Evaluations]) -> dict[MeasureName, str]:
    found: dict[MeasureName, str] = {}
    if any(log.time_s is None for log in logs):
        found["seconds"] = found["seconds_per_step"] = "a log has no column of times"
    if any(log.step is None for log in logs):
        found["steps"] = found["seconds_per_step"] = "a log has no column of steps"
    return found


def _measured(name: MeasureName, a: np.ndarray, b: np.ndarray) -> TargetMeasure:
    medians = float(np.median(a)), float(np.median(b))
    low, high = _interval(a, b)
    return TargetMeasure(
        name=name,
        median_a=_finite(medians[0]),
        median_b=_finite(medians[1]),
        ratio=_ratio(*medians),
        low=low,
        high=_finite(high),
        p=rank_permutation_test(a, b),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ratio(a: float, b: float) -> float | None:
    return a / b if math.isfinite(a) and math.isfinite(b) and b else None


def _interval(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """95 % interval of the ratio of medians. Where both medians are infinite, it may be anything from 0 on."""
    rng = np.random.default_rng(0)
    drawn = [np.median(side[rng.integers(0, len(side), (MIN_REPLICATES, len(side)))], axis=1) for side in (a, b)]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = drawn[0] / drawn[1]
    low, high = np.where(np.isnan(ratios), 0.0, ratios), np.where(np.isnan(ratios), np.inf, ratios)
    # Not between two of the ratios: that has no value next to an infinite one.
    return (
        float(np.quantile(low, 0.025, method="inverted_cdf")),
        float(np.quantile(high, 0.975, method="inverted_cdf")),
    )


def rank_permutation_test(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p-value for a difference of the mean ranks of `a` and `b`; infinite values tie as the largest.

    1 where a side has a single value.
    """
    from scipy.stats import permutation_test, rankdata

    if min(len(a), len(b)) < 2:
        return 1.0
    ranks = rankdata([*a, *b])
    found = permutation_test(
        (ranks[: len(a)], ranks[len(a) :]),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        vectorized=True,
        n_resamples=_MAX_ASSIGNMENTS,
        batch=1_000,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def _smallest_p(a: int, b: int) -> float:
    """The least that `rank_permutation_test` returns for so many values."""
    return 2 / math.comb(a + b, a) if min(a, b) > 1 else 1.0


def _outcome(a: np.ndarray, b: np.ndarray, p: float, smallest: float) -> Outcome:
    if smallest > ALPHA:
        return "too few runs"
    if p > ALPHA:
        return "no difference shown"
    return "b" if probability_larger(a, b) > 0.5 else "a"


def _verdict(outcome: Outcome, measure: TargetMeasure, sides: tuple[_Side, _Side], smallest: float) -> str:
    reached = " and ".join(f"{side.reached} of {len(side.logs)} {name}" for side, name in zip(sides, "AB", strict=True))
    if outcome == "too few runs":
        sizes = " and ".join(str(len(side.logs)) for side in sides)
        return (
            f"{sizes} trainings cannot decide: their smallest possible p-value is {smallest:.2g}. {reached} reach it."
        )
    word, p = _WORDS[measure.name], f"p = {measure.p:.2g}"
    if outcome == "no difference shown":
        return f"No difference in {word} to the target is shown ({p}). {reached} reach it."
    by = f" to {decimal(measure.high)}" if measure.high is not None else " or more"
    times = "" if measure.ratio is None else f", ratio {decimal(measure.ratio)} ({decimal(measure.low)}{by})"
    return f"{outcome.upper()} reaches the target in fewer {word}{times}, {p}. {reached} reach it."


def _nearby(
    a: Sequence[Evaluations], b: Sequence[Evaluations], target: float, better: Better, window: int, name: MeasureName
) -> NearbyTarget:
    sides = [_Side(logs, target, better, window) for logs in (a, b)]
    return NearbyTarget(
        target=target,
        reached_a=sides[0].reached,
        reached_b=sides[1].reached,
        ratio=_ratio(*(float(np.median(side.measure(name))) for side in sides)),
    )
