"""Interleaved measurements of a job before and after a change, compared with a prediction.

A prediction gives the relative change of steps under the profiler. It is applied to steps of the same job without the
profiler: the predicted step is that share of the step before the change. Effects of the machine on both sides of a pair
therefore cancel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.core.statistics import mean_margin
from esprof.run.logs import Estimate, ObservedOutcome, ReplayPrediction


@dataclass(frozen=True)
class Pairs:
    """Mean steps in µs, one per repeat, of the unchanged job and with the change."""

    before_us: Sequence[float]
    after_us: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.before_us) != len(self.after_us) or not self.before_us:
            raise ValueError("pairs have two sides, and there is at least one of them")

    @property
    def before(self) -> Estimate:
        return _estimate(float(np.mean(self.before_us)), np.array(self.before_us))

    @property
    def observed(self) -> Estimate:
        """The step with the change. Its interval is that of the ratio of the two sides: a slowdown of both sides of a pair
        does not widen it."""
        before, after = np.array(self.before_us), np.array(self.after_us)
        ratio = after.mean() / before.mean()
        return _estimate(float(after.mean()), after - ratio * before)

    def predicted(self, prediction: ReplayPrediction) -> Estimate:
        """The predicted step, relative to the present step before the change."""
        us, low, high = (float(np.mean(self.before_us)) * share for share in prediction.shares)
        return Estimate(us=us, low_us=low, high_us=high)

    def outcome(self, prediction: ReplayPrediction, by: str) -> ObservedOutcome:
        """Compare the observed step with a prediction; `by` is the verb that made the change."""
        predicted, observed = self.predicted(prediction), self.observed
        assert predicted.low_us is not None
        assert predicted.high_us is not None
        return ObservedOutcome(
            id=prediction.id,
            spec=prediction.spec,
            terms=prediction.terms,
            job=prediction.job,
            by=by,
            repeats=len(self.before_us),
            before=self.before,
            predicted=predicted,
            observed=observed,
            error_pct=100 * (predicted.us / observed.us - 1),
            held=predicted.low_us <= observed.us <= predicted.high_us,
            versions=prediction.versions,
        )


def _estimate(us: float, scattered: np.ndarray) -> Estimate:
    """The mean `us` with the confidence interval of the mean of `scattered`."""
    if len(scattered) < 2:
        return Estimate(us=us)
    margin = mean_margin(scattered)
    return Estimate(us=us, low_us=max(0.0, us - margin), high_us=us + margin)
