"""The gate: is this run significantly worse than its baseline, by more than the rules allow?

Each rule applies to the median and to the mean, since a save every few steps changes only the mean. The median has regressed
if the medians differ by more than the rule allows *and* the rank test finds a difference. The mean, which single steps can
move, has regressed only if the bootstrap places it beyond the rule. Both are corrected for the number of tests. A metric is
unchanged if its entire interval lies within the rule. Anything else is inconclusive; the result then says how many more
steps are needed. A worsening is also inconclusive if longer waits for a CPU explain it: on a shared machine they differ
between runs of the same code.

Tests within two runs do not know how runs of the same code differ on this machine. A baseline of several runs tells: a
worsening must then also exceed what one more run of the same code would show.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, get_args

import msgspec
import numpy as np

from esprof.analyzers.gate.baseline import Baseline, RunIdentity, refuse_mismatch
from esprof.analyzers.gate.rules import METRICS, GateRule
from esprof.analyzers.gate.samples import (
    STATISTICS,
    MetricSamples,
    Statistic,
    margin_between_runs,
    metric_samples,
    more_cpu_wait,
)
from esprof.analyzers.steps.job_steps import ComparedPhase
from esprof.core.errors import UsageError
from esprof.core.statistics import (
    MIN_REPLICATES,
    block_length,
    bootstrap,
    holm,
    probability_larger,
    rank_test,
)
from esprof.core.types import NS_PER_US
from esprof.run.run import RunWarning

SLOW_STEP_TIMES_MEDIAN = 1.5
"""A step is slow if it is worse than the baseline's median by more than half of it."""

Outcome = Literal["regressed", "inconclusive", "unchanged"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Worst first."""


_MIN_TIMES_THE_STEPS, _MAX_TIMES_THE_STEPS = 1.2, 100
"""Range of the advised number of steps, relative to the steps at hand: less than a fifth more would be false precision,
more than a hundredfold is impractical."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    rules: tuple[GateRule, ...]
    alpha: float = 0.01
    """Probability, over all rules together, that an unchanged metric is called regressed."""
    min_steps: int = 10


class MoreSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Approximate number of steps missing on each side."""

    run: int
    baseline: int


class MetricCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one rule for the median or the mean. `change`, `low`, `high` and `limit` are run minus baseline, in
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
    """Moving-block bootstrap interval of `change`, at confidence 1 - 2 alpha; wider by `between_runs` if that is known."""
    between_runs: float | None
    """By how much one more run of the same code may be worse than the baseline's runs, at level alpha; None if the baseline
    has too few runs to tell."""
    runs: int
    """Number of the baseline's runs."""
    limit: float
    value_unit: str
    """`us` or `1/s`."""
    baseline_value: float
    """The baseline's median or mean."""
    run_value: float
    p: float
    """One-sided p-value, adjusted for the number of tests. Null hypothesis of the rank test on block medians: no
    difference; of the bootstrap: the mean is within the limit."""
    baseline_slow: int
    """Number of the baseline's steps that are worse than its median by more than half of it."""
    run_slow: int
    """Number of the run's steps that are worse than the baseline's median by more than half of it."""
    worse_probability: float
    """Probability that a step of the run is worse than a step of the baseline; 0.5 means no difference."""
    block: int
    """Steps per block."""
    baseline_steps: int
    run_steps: int
    more_cpu_wait_us: float | None
    """Additional time that a rank waited for a CPU in a step, compared with the baseline, if only that makes the outcome
    inconclusive instead of regressed; None otherwise."""
    more_steps: MoreSteps | None
    """Steps that would decide an inconclusive outcome; None if no practical number of steps would."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `esprof check --json`. `outcome` is the worst of all rules: regressed, then inconclusive, then
    unchanged."""

    schema: str = "esprof.check/1"
    outcome: Outcome
    phase: ComparedPhase
    alpha: float
    min_steps: int
    metrics: tuple[MetricCheck, ...]
    is_itself: bool = False
    """All samples are those of the baseline: the run was compared with itself, and nothing has changed."""
    identity: RunIdentity
    run_command: tuple[str, ...]
    baseline_command: tuple[str, ...]
    warnings: tuple[RunWarning, ...]


def check(baseline: Baseline, run: Baseline, options: Options, warnings: tuple[RunWarning, ...] = ()) -> Check:
    """Compare `run` with `baseline` by `options.rules`; `warnings` about the run are copied into the result.

    Raises MismatchError if the two are not comparable or lack a metric, UsageError for a rule in per cent of zero.
    """
    refuse_mismatch(baseline, run)
    count = len(options.rules) * len(STATISTICS)
    # Enough to resolve the significance level of each of the corrected tests.
    replicates = max(MIN_REPLICATES, math.ceil(10 * count / options.alpha))
    tests = [
        _Test(
            rule,
            of,
            metric_samples(baseline.runs, rule, "the baseline"),
            metric_samples((run.samples,), rule, "this run"),
            replicates,
            more_cpu_wait(baseline, run, of),
            margin_between_runs(baseline, rule, of, options.alpha / count),
            len(baseline.runs),
        )
        for rule in options.rules
        for of in STATISTICS
    ]
    p_values = holm([test.p for test in tests])
    metrics = tuple(_check_metric(test, p, options) for test, p in zip(tests, p_values, strict=True))
    is_itself = baseline.runs == (run.samples,)
    if is_itself:
        same: Outcome = "unchanged"
        metrics = tuple(msgspec.structs.replace(metric, outcome=same, more_steps=None) for metric in metrics)
    outcomes = {metric.outcome for metric in metrics}
    return Check(
        outcome=next(outcome for outcome in OUTCOMES if outcome in outcomes),
        phase=run.phase,
        alpha=options.alpha,
        min_steps=options.min_steps,
        metrics=metrics,
        is_itself=is_itself,
        identity=run.identity,
        run_command=run.command,
        baseline_command=baseline.command,
        warnings=warnings,
    )


@dataclass(frozen=True)
class _Test:
    """One statistic of the samples of the baseline (`before`) and the run (`now`) under one rule. Larger is worse."""

    rule: GateRule
    statistic: Statistic
    before: MetricSamples
    now: MetricSamples
    replicates: int
    """Replicates of the bootstrap."""
    more_cpu_wait: float
    """Additional time that a step of the run waits for a CPU, ns."""
    margin: float | None
    """By how much one more run of the same code may be worse, in units of the samples; None if unknown."""
    runs: int
    """Number of runs of the baseline."""

    @cached_property
    def block(self) -> int:
        return block_length(self.before.values, self.now.values)

    @cached_property
    def unit(self) -> float:
        """Size of one unit of the rule, in the unit of the samples. Raises UsageError for per cent of zero."""
        if self.rule.unit != "%":
            return METRICS[self.rule.metric].limits[self.rule.unit]
        percent = abs(self.values[0]) / 100
        if percent == 0:
            raise UsageError(
                f"{self.rule.metric} is 0 in the baseline, so a limit in per cent of it is meaningless",
                remedy=f"Write an absolute rule, such as {self.rule.metric}:+1ms."
                if METRICS[self.rule.metric].limits
                else f"Save a baseline of a run in which {self.rule.metric} is not 0.",
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
    def between_runs(self) -> float:
        """`margin` in the rule's unit; 0 if it is unknown."""
        return (self.margin or 0.0) / self.unit

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
        """Bootstrap distribution of the difference, in the rule's unit, float64[replicates]."""
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

    def slow(self, of: MetricSamples) -> int:
        """Number of these samples that are slow (`SLOW_STEP_TIMES_MEDIAN`)."""
        usual = float(np.median(self.before.values))
        return int(np.count_nonzero(of.values > usual + (SLOW_STEP_TIMES_MEDIAN - 1) * abs(usual)))


def _check_metric(test: _Test, p: float, options: Options) -> MetricCheck:
    rule, metric = test.rule, METRICS[test.rule.metric]
    low, high = np.quantile(test.drawn, [options.alpha, 1 - options.alpha]).tolist()
    low, high = low - test.between_runs, high + test.between_runs
    steps = len(test.before.values), len(test.now.values)
    worsening = _Worsening(test.worsening, low, high)
    # The test of a mean is whether it exceeds the limit, that of a median whether it differs from the baseline's.
    beyond = rule.limit if test.statistic == "mean" else 0.0
    is_significant = p < options.alpha and worsening.value > beyond + test.between_runs
    outcome, more_steps = _judge(worsening, rule.limit, beyond, is_significant, steps, options.min_steps)
    if test.margin is not None and min(steps) >= options.min_steps:
        more_steps = None  # More steps of these runs do not tell more of other runs.
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
        between_runs=None if test.margin is None else test.between_runs,
        runs=test.runs,
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
    """The outcome, and the missing steps. `significant` states that the difference exceeds `beyond`; `steps` are the numbers
    of steps of the baseline and of the run."""
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
    """Multiple of the steps at hand with which an interval fits into `room`: its width shrinks with the root of their
    number."""
    return max(_MIN_TIMES_THE_STEPS, (half_width / room) ** 2) if room > 0 else math.inf
