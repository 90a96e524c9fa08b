"""The gate: is this run significantly worse than its baseline, by more than the rules allow?

Each rule applies to the median and to the mean, since a save every few steps changes only the mean. The median has regressed
if the medians differ by more than the rule allows *and* the rank test finds a difference. The mean, which single steps can
move, has regressed only if the bootstrap places it beyond the rule. Both are corrected for the number of tests. A metric is
unchanged if its entire interval lies within the rule. Anything else is inconclusive; the result then says how many more
steps are needed. A worsening is also inconclusive if longer waits for a CPU explain it: on a shared machine they differ
between runs of the same code.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, get_args

import msgspec
import numpy as np

from esprof.analyzers.gate.baseline import Baseline, RunIdentity, differences
from esprof.analyzers.gate.rules import METRICS, GateRule
from esprof.analyzers.steps.job_steps import ComparedPhase
from esprof.core.errors import MismatchError, UsageError
from esprof.core.statistics import MIN_REPLICATES, block_length, bootstrap, holm, probability_larger, rank_test
from esprof.core.types import NS_PER_US
from esprof.run.run import RunWarning

Statistic = Literal["median", "mean"]

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

SLOW_STEP_TIMES_MEDIAN = 1.5
"""A step is slow that is worse than the baseline's median by more than half of it."""

Outcome = Literal["regressed", "inconclusive", "unchanged"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Worst first."""


_MIN_TIMES_THE_STEPS, _MAX_TIMES_THE_STEPS = 1.2, 100
"""Advice below a fifth more steps is pretence of precision; above a hundred times the steps at hand it is useless."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    rules: tuple[GateRule, ...]
    alpha: float = 0.01
    """Chance of calling a metric regressed that is not, over all rules together."""
    min_steps: int = 10


class MoreSteps(msgspec.Struct, frozen=True, kw_only=True):
    """About how many steps are missing on either side."""

    run: int
    baseline: int


class MetricCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's answer about the median or the mean. `change`, `low`, `high` and `limit` are run minus baseline, in
    `unit`."""

    metric: str
    statistic: Statistic
    rule: str
    outcome: Outcome
    improved: bool
    """The whole interval lies on the better side of no change."""
    unit: str
    change: float
    """Difference of the medians, or of the means."""
    low: float
    high: float
    """Moving-block bootstrap interval of `change`, at confidence 1 - 2 alpha."""
    limit: float
    value_unit: str
    """`us` or `1/s`."""
    baseline_value: float
    """The baseline's median or mean."""
    run_value: float
    p: float
    """One-sided, adjusted for the number of tests: of the rank test on block medians that there is no difference, or of the
    bootstrap that the mean is within the limit."""
    baseline_slow: int
    """How many of the baseline's steps are worse than its median by more than half of it."""
    run_slow: int
    """How many of the run's steps are worse than the baseline's median by more than half of it."""
    worse_probability: float
    """How often a step of the run is worse than a step of the baseline; 0.5 is no difference."""
    block: int
    """Steps a block."""
    baseline_steps: int
    run_steps: int
    more_cpu_wait_us: float | None
    """By how much longer a rank waited for a CPU in a step than in the baseline, where that alone makes the outcome
    inconclusive instead of regressed; None otherwise."""
    more_steps: MoreSteps | None
    """What would tell, where the outcome is inconclusive; None there if no practical number of steps would."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof check --json`. `outcome` is the worst of the rules': regressed, then inconclusive, then unchanged."""

    schema: str = "esprof.check/1"
    outcome: Outcome
    phase: ComparedPhase
    alpha: float
    min_steps: int
    metrics: tuple[MetricCheck, ...]
    identity: RunIdentity
    run_command: tuple[str, ...]
    baseline_command: tuple[str, ...]
    warnings: tuple[RunWarning, ...]


def check(baseline: Baseline, run: Baseline, options: Options, warnings: tuple[RunWarning, ...] = ()) -> Check:
    """Compare `run` with `baseline` by `options.rules`; `warnings` (what the run lacks) go into the answer.

    Raises MismatchError where they must not be compared or lack a metric, UsageError for a rule in per cent of nothing.
    """
    _refuse_mismatch(baseline, run)
    count = len(options.rules) * len(STATISTICS)
    # So many that chance has room for the level that each of the tests is held to.
    replicates = max(MIN_REPLICATES, math.ceil(10 * count / options.alpha))
    tests = [
        _Test(
            rule,
            of,
            _badness(baseline, rule, "the baseline"),
            _badness(run, rule, "this run"),
            replicates,
            _more_cpu_wait(baseline, run, of),
        )
        for rule in options.rules
        for of in STATISTICS
    ]
    p_values = holm([test.p for test in tests])
    metrics = tuple(_check_metric(test, p, options) for test, p in zip(tests, p_values, strict=True))
    outcomes = {metric.outcome for metric in metrics}
    return Check(
        outcome=next(outcome for outcome in OUTCOMES if outcome in outcomes),
        phase=run.phase,
        alpha=options.alpha,
        min_steps=options.min_steps,
        metrics=metrics,
        identity=run.identity,
        run_command=run.command,
        baseline_command=baseline.command,
        warnings=warnings,
    )


def _refuse_mismatch(baseline: Baseline, run: Baseline) -> None:
    differ = differences(baseline.identity, run.identity)
    if baseline.phase != run.phase:
        differ.append(f"steps: {baseline.phase} in the baseline, {run.phase} in this run")
    if differ:
        raise MismatchError(
            "the baseline is of another setting, and a difference of step times would say nothing about the code: "
            + "; ".join(differ),
            remedy="Save a baseline on this setting with `esprof check RUN --save-baseline FILE`.",
        )


@dataclass(frozen=True)
class _MetricSamples:
    """The metric's samples, negated where less is worse, so that more is worse in all that follows; and how long each
    lasted, where it is a rate."""

    values: np.ndarray
    times: np.ndarray | None

    def value(self, statistic: Statistic, at: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The statistic of the samples at these places, over the last axis; the mean of a rate is weighted by time."""
        values = self.values[at]
        if statistic == "median":
            return np.asarray(np.median(values, axis=-1))
        if self.times is None:
            return np.asarray(values.mean(axis=-1))
        # What was done in all of the time.
        times = self.times[at]
        return np.asarray((values * times).sum(axis=-1) / times.sum(axis=-1))


def _badness(measured: Baseline, rule: GateRule, whose: str) -> _MetricSamples:
    samples = measured.samples.get(rule.metric)
    if samples is None:
        known = ", ".join(sorted(measured.samples))
        raise MismatchError(f"{whose} does not tell {rule.metric}", remedy=f"What it tells: {known}.")
    metric, times = METRICS[rule.metric], measured.samples["step_time"]
    # Where some steps do not tell the metric, nobody knows which: all count alike.
    weights = np.array(times if len(times) == len(samples) else [1.0] * len(samples))
    return _MetricSamples(metric.worse * np.array(samples, np.float64), weights if metric.is_rate else None)


def _more_cpu_wait(baseline: Baseline, run: Baseline, statistic: Statistic) -> float:
    """By how much longer a rank waits for a CPU in a step of `run`, ns; 0 where it does not, or where nobody knows."""
    waits = [measured.samples.get("cpu_wait") for measured in (run, baseline)]
    if waits[0] is None or waits[1] is None:
        return 0.0
    now, before = (_MetricSamples(np.array(wait), None).value(statistic) for wait in waits)
    return max(0.0, float(now - before))


@dataclass(frozen=True)
class _Test:
    """One statistic of the samples before and now, by one rule. Larger is worse."""

    rule: GateRule
    statistic: Statistic
    before: _MetricSamples
    now: _MetricSamples
    replicates: int
    """Series that the bootstrap draws."""
    more_cpu_wait: float
    """By how much longer a step now waits for a CPU, ns."""

    @cached_property
    def block(self) -> int:
        return block_length(self.before.values, self.now.values)

    @cached_property
    def unit(self) -> float:
        """Samples' worth of one unit of the rule. Raises UsageError for per cent of nothing."""
        if self.rule.unit != "%":
            return METRICS[self.rule.metric].limits[self.rule.unit]
        percent = abs(self.values[0]) / 100
        if percent == 0:
            raise UsageError(
                f"{self.rule.metric} is 0 in the baseline, and no per cent of it says anything",
                remedy=f"Write an absolute rule, such as {self.rule.metric}:+1ms."
                if METRICS[self.rule.metric].limits
                else "Save a baseline of a run that has some.",
            )
        return percent

    @property
    def values(self) -> tuple[float, float]:
        """The statistic (before, now)."""
        return float(self.before.value(self.statistic)), float(self.now.value(self.statistic))

    @property
    def worsening(self) -> float:
        """The difference, in the rule's unit; positive is worse."""
        before, now = self.values
        return (now - before) / self.unit

    @property
    def without_more_cpu_wait(self) -> float:
        """The difference, in the rule's unit, as if steps waited no longer for a CPU than before."""
        before, now = self.values
        if self.rule.metric == "step_time":
            now -= self.more_cpu_wait
        elif self.now.times is not None:
            step_ns = float(self.now.times.mean())
            now *= step_ns / max(step_ns - self.more_cpu_wait, 1.0)
        return (now - before) / self.unit

    @cached_property
    def drawn(self) -> np.ndarray:
        """The difference as it comes out by chance, in the rule's unit."""
        rng = np.random.default_rng(0)
        now, before = (
            bootstrap(len(of.values), self.block, partial(of.value, self.statistic), self.replicates, rng)
            for of in (self.now, self.before)
        )
        drawn: np.ndarray = (now - before) / self.unit
        return drawn

    @cached_property
    def p(self) -> float:
        if self.statistic == "median":
            return rank_test(self.now.values, self.before.values, self.block)
        return float((np.count_nonzero(self.drawn <= self.rule.limit) + 1) / (len(self.drawn) + 1))

    def slow(self, of: _MetricSamples) -> int:
        """How many of these samples are slow (`SLOW_STEP_TIMES_MEDIAN`)."""
        usual = float(np.median(self.before.values))
        return int(np.count_nonzero(of.values > usual + (SLOW_STEP_TIMES_MEDIAN - 1) * abs(usual)))


def _check_metric(test: _Test, p: float, options: Options) -> MetricCheck:
    rule, metric = test.rule, METRICS[test.rule.metric]
    low, high = np.quantile(test.drawn, [options.alpha, 1 - options.alpha]).tolist()
    steps = len(test.before.values), len(test.now.values)
    worsening = _Worsening(test.worsening, low, high)
    # A mean must be beyond the limit to regress, a median different from what it was.
    beyond = rule.limit if test.statistic == "mean" else 0.0
    outcome, more_steps = _judge(worsening, rule.limit, beyond, p < options.alpha, steps, options.min_steps)
    only_waited = outcome == "regressed" and test.without_more_cpu_wait <= rule.limit
    if only_waited:
        outcome = "inconclusive"
    ends = sorted((metric.worse * low, metric.worse * high))
    before, now = (metric.worse * value / metric.scale for value in test.values)
    return MetricCheck(
        metric=rule.metric,
        statistic=test.statistic,
        rule=str(rule),
        outcome=outcome,
        improved=outcome == "unchanged" and high < 0,
        unit=rule.unit,
        change=metric.worse * test.worsening,
        low=ends[0],
        high=ends[1],
        limit=metric.worse * rule.limit,
        value_unit=metric.unit,
        baseline_value=before,
        run_value=now,
        p=p,
        baseline_slow=test.slow(test.before),
        run_slow=test.slow(test.now),
        worse_probability=probability_larger(test.now.values, test.before.values),
        block=test.block,
        more_cpu_wait_us=test.more_cpu_wait / NS_PER_US if only_waited else None,
        baseline_steps=steps[0],
        run_steps=steps[1],
        more_steps=more_steps,
    )


class _Worsening(msgspec.Struct, frozen=True):
    """A difference in the rule's unit, with its interval; positive is worse."""

    value: float
    low: float
    high: float


def _judge(
    worsening: _Worsening,
    limit: float,
    beyond: float,
    significant: bool,
    steps: tuple[int, int],
    min_steps: int,
) -> tuple[Outcome, MoreSteps | None]:
    """`beyond` is what `significant` says that the difference is beyond; `steps` are those of the baseline and the run."""
    missing = [max(0, min_steps - n) for n in steps]
    if any(missing):
        return "inconclusive", MoreSteps(baseline=missing[0], run=missing[1])
    if worsening.value > limit:
        if significant:
            return "regressed", None
        times = _times_wanted(worsening.value - worsening.low, worsening.value - beyond)
    elif worsening.high <= limit:
        return "unchanged", None
    else:
        times = _times_wanted(worsening.high - worsening.value, limit - worsening.value)
    if times > _MAX_TIMES_THE_STEPS:
        return "inconclusive", None
    more = [math.ceil((times - 1) * n) for n in steps]
    return "inconclusive", MoreSteps(baseline=more[0], run=more[1])


def _times_wanted(half_width: float, room: float) -> float:
    """How many times the steps at hand make an interval fit `room`: its width shrinks with the root of their number."""
    return max(_MIN_TIMES_THE_STEPS, (half_width / room) ** 2) if room > 0 else math.inf
