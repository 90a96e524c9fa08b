"""The samples of a metric that the gate compares, and how runs of the same code differ in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from esprof.analyzers.gate.baseline import Baseline
from esprof.analyzers.gate.rules import METRICS, GateRule
from esprof.core.errors import MismatchError
from esprof.core.statistics import prediction_margin

Statistic = Literal["median", "mean"]

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

MIN_RUNS = 4
"""Fewest runs of a baseline that tell how runs of the same code differ."""


@dataclass(frozen=True)
class MetricSamples:
    """Samples of a metric, negated if smaller values are worse, so that larger is always worse. `times` are the durations
    of the samples of a rate, None for other metrics."""

    values: np.ndarray
    times: np.ndarray | None

    def value(self, statistic: Statistic, at: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The statistic of the samples at positions `at`, over the last axis; the mean of a rate is weighted by time."""
        values = self.values[at]
        if statistic == "median":
            return np.asarray(np.median(values, axis=-1))
        if self.times is None:
            return np.asarray(values.mean(axis=-1))
        times = self.times[at]
        return np.asarray((values * times).sum(axis=-1) / times.sum(axis=-1))


def metric_samples(runs: Sequence[Mapping[str, Sequence[float]]], rule: GateRule, side: str) -> MetricSamples:
    """The samples of all these runs. Raises MismatchError if one has none of the metric."""
    lacking = next((samples for samples in runs if rule.metric not in samples), None)
    if lacking is not None:
        known = ", ".join(sorted(lacking))
        raise MismatchError(f"{side} has no samples of {rule.metric}", remedy=f"It has samples of: {known}.")
    metric = METRICS[rule.metric]
    # If some steps lack the metric, which ones is unknown: all count equally.
    weights = [
        times if len(times := samples["step_time"]) == len(samples[rule.metric]) else [1.0] * len(samples[rule.metric])
        for samples in runs
    ]
    values = np.concatenate([np.array(samples[rule.metric], np.float64) for samples in runs])
    return MetricSamples(metric.worse * values, np.concatenate(weights) if metric.is_rate else None)


def more_cpu_wait(baseline: Baseline, run: Baseline, statistic: Statistic) -> float:
    """Additional time that a rank waits for a CPU in a step of `run`, ns; 0 if there is none or it is unknown."""
    sides = [[samples.get("cpu_wait") for samples in measured.runs] for measured in (run, baseline)]
    if any(waits is None for side in sides for waits in side):
        return 0.0
    now, before = (
        MetricSamples(np.concatenate([waits for waits in side if waits is not None]), None).value(statistic)
        for side in sides
    )
    return max(0.0, float(now - before))


def margin_between_runs(baseline: Baseline, rule: GateRule, statistic: Statistic, alpha: float) -> float | None:
    """By how much one more run of the same code may be worse than the runs of the baseline, in units of the samples."""
    if len(baseline.runs) < MIN_RUNS:
        return None
    of_runs = [float(metric_samples((samples,), rule, "the baseline").value(statistic)) for samples in baseline.runs]
    return prediction_margin(of_runs, alpha)
