"""The gate: is this run worse than its baseline, by more than it may be, beyond what noise explains?

A metric has regressed where the medians differ by more than the rule allows *and* the rank test is significant after
correction for the number of rules. It is unchanged where the whole interval lies within the rule. Anything else is
inconclusive: the answer then says how many more steps would tell.
"""

import math
import re
from typing import Literal, get_args

import msgspec
import numpy as np

from esprof.analyzers.gate import stats
from esprof.analyzers.gate.baseline import Baseline, Identity, Phase, differences
from esprof.errors import MismatchError, UsageError
from esprof.trace.run import Warning
from esprof.types import NS_PER_MS, NS_PER_S, NS_PER_US

Outcome = Literal["regressed", "inconclusive", "unchanged"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Worst first."""


class Metric(msgspec.Struct, frozen=True):
    """`worse` is +1 where a larger value is worse, -1 where a smaller one is; `unit` is `scale` times the samples'."""

    worse: int
    unit: str
    scale: float
    limits: dict[str, float]
    """Absolute units that a rule may use, with their size in samples."""


_TIME_LIMITS: dict[str, float] = {"us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}

METRICS = {
    "step_time": Metric(+1, "us", NS_PER_US, _TIME_LIMITS),
    "loader_wait": Metric(+1, "us", NS_PER_US, _TIME_LIMITS),
    "samples_per_s": Metric(-1, "1/s", 1, {}),
    "tokens_per_s": Metric(-1, "1/s", 1, {}),
}

_RULE = re.compile(r"(?P<metric>\w+):(?P<sign>[+-]?)(?P<limit>\d+(?:\.\d+)?)(?P<unit>%|[a-z]+)")

_LEAST_TIMES, _MOST_TIMES = 1.2, 100
"""Advice below a fifth more steps is pretence of precision; above a hundred times the steps at hand it is useless."""


class Rule(msgspec.Struct, frozen=True):
    """`metric` may get worse by at most `limit` of `unit` (`%` of the baseline's median, or an absolute unit)."""

    metric: str
    limit: float
    unit: str

    def __str__(self) -> str:
        return f"{self.metric}:{'+' if METRICS[self.metric].worse > 0 else '-'}{self.limit:g}{self.unit}"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    rules: tuple[Rule, ...]
    alpha: float = 0.01
    """Chance of calling a metric regressed that is not, over all rules together."""
    min_steps: int = 10


class MoreSteps(msgspec.Struct, frozen=True, kw_only=True):
    """About how many steps are missing on either side."""

    run: int
    baseline: int


class MetricCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's answer. `change`, `low`, `high` and `limit` are run minus baseline, in `unit`."""

    metric: str
    rule: str
    outcome: Outcome
    improved: bool
    """The whole interval lies on the better side of no change."""
    unit: str
    change: float
    """Difference of the medians."""
    low: float
    high: float
    """Moving-block bootstrap interval of `change`, at confidence 1 - 2 alpha."""
    limit: float
    median_unit: str
    """`us` or `1/s`."""
    baseline_median: float
    run_median: float
    p: float
    """One-sided, of the rank test on block medians, adjusted for the number of rules."""
    worse_probability: float
    """How often a step of the run is worse than a step of the baseline; 0.5 is no difference."""
    block: int
    """Steps a block."""
    baseline_steps: int
    run_steps: int
    more_steps: MoreSteps | None
    """What would tell, where the outcome is inconclusive; None there if no practical number of steps would."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof check --json`. `outcome` is the worst of the rules': regressed, then inconclusive, then unchanged."""

    schema: str = "esprof.check/1"
    outcome: Outcome
    phase: Phase
    alpha: float
    min_steps: int
    metrics: tuple[MetricCheck, ...]
    identity: Identity
    run_command: tuple[str, ...]
    baseline_command: tuple[str, ...]
    warnings: tuple[Warning, ...]


def parse_rule(text: str) -> Rule:
    """Read `METRIC:+5%` or `METRIC:+3ms`. Raises UsageError that says what is understood."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"rule {text!r} is not METRIC:LIMIT", remedy="Write for example step_time:+5% or step_time:+3ms."
        )
    name, sign, unit = match["metric"], match["sign"], match["unit"]
    if name not in METRICS:
        raise UsageError(f"unknown metric {name!r}", remedy=f"Known metrics: {', '.join(METRICS)}.")
    metric = METRICS[name]
    if unit != "%" and unit not in metric.limits:
        raise UsageError(f"{name} has no unit {unit!r}", remedy=f"Known units: {', '.join(['%', *metric.limits])}.")
    rule = Rule(name, float(match["limit"]), unit)
    if sign and (sign == "+") != (metric.worse > 0):
        raise UsageError(f"rule {text!r} would fail on getting better", remedy=f"Write {rule}.")
    return rule


def check(baseline: Baseline, run: Baseline, options: Options, warnings: tuple[Warning, ...] = ()) -> Check:
    """Compare `run` with `baseline` by `options.rules`; `warnings` (what the run lacks) go into the answer.

    Raises MismatchError where they must not be compared or lack a metric, UsageError for a rule in per cent of nothing.
    """
    _refuse_mismatch(baseline, run)
    pairs = [(_badness(baseline, rule, "the baseline"), _badness(run, rule, "this run")) for rule in options.rules]
    p_values = stats.holm([stats.rank_test(now, before, stats.block_length(before, now)) for before, now in pairs])
    metrics = tuple(
        _check_metric(rule, *pair, p, options) for rule, pair, p in zip(options.rules, pairs, p_values, strict=True)
    )
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


def _badness(measured: Baseline, rule: Rule, whose: str) -> np.ndarray:
    """The metric's samples, negated where less is worse: in all that follows more is worse."""
    samples = measured.samples.get(rule.metric)
    if samples is None:
        known = ", ".join(sorted(measured.samples))
        raise MismatchError(f"{whose} does not tell {rule.metric}", remedy=f"What it tells: {known}.")
    return METRICS[rule.metric].worse * np.array(samples, np.float64)


class _Worsening(msgspec.Struct, frozen=True):
    """Difference of the medians in the rule's unit, with its interval; positive is worse."""

    value: float
    low: float
    high: float


def _check_metric(rule: Rule, before: np.ndarray, now: np.ndarray, p: float, options: Options) -> MetricCheck:
    metric = METRICS[rule.metric]
    block = stats.block_length(before, now)
    worsening = _worsening(before, now, _unit_size(rule, before), block, options.alpha)
    outcome, more_steps = _judge(worsening, rule.limit, p < options.alpha, (len(before), len(now)), options.min_steps)
    low, high = sorted((metric.worse * worsening.low, metric.worse * worsening.high))
    return MetricCheck(
        metric=rule.metric,
        rule=str(rule),
        outcome=outcome,
        improved=outcome == "unchanged" and worsening.high < 0,
        unit=rule.unit,
        change=metric.worse * worsening.value,
        low=low,
        high=high,
        limit=metric.worse * rule.limit,
        median_unit=metric.unit,
        baseline_median=metric.worse * float(np.median(before)) / metric.scale,
        run_median=metric.worse * float(np.median(now)) / metric.scale,
        p=p,
        worse_probability=stats.probability_larger(now, before),
        block=block,
        baseline_steps=len(before),
        run_steps=len(now),
        more_steps=more_steps,
    )


def _unit_size(rule: Rule, before: np.ndarray) -> float:
    """Samples' worth of one unit of the rule."""
    if rule.unit != "%":
        return METRICS[rule.metric].limits[rule.unit]
    percent = abs(float(np.median(before))) / 100
    if percent == 0:
        raise UsageError(
            f"{rule.metric} is 0 in the baseline, and no per cent of it says anything",
            remedy=f"Write an absolute rule, such as {rule.metric}:+1ms.",
        )
    return percent


def _worsening(before: np.ndarray, now: np.ndarray, unit: float, block: int, alpha: float) -> _Worsening:
    rng = np.random.default_rng(0)
    drawn = stats.bootstrap_medians(now, block, rng) - stats.bootstrap_medians(before, block, rng)
    low, high = np.quantile(drawn, [alpha, 1 - alpha]) / unit
    return _Worsening(float(np.median(now) - np.median(before)) / unit, float(low), float(high))


def _judge(
    worsening: _Worsening, limit: float, significant: bool, steps: tuple[int, int], min_steps: int
) -> tuple[Outcome, MoreSteps | None]:
    """`steps` are those of the baseline and of the run."""
    missing = [max(0, min_steps - n) for n in steps]
    if any(missing):
        return "inconclusive", MoreSteps(baseline=missing[0], run=missing[1])
    if worsening.value > limit:
        if significant:
            return "regressed", None
        times = _times_wanted(worsening.value - worsening.low, worsening.value)
    elif worsening.high <= limit:
        return "unchanged", None
    else:
        times = _times_wanted(worsening.high - worsening.value, limit - worsening.value)
    if times > _MOST_TIMES:
        return "inconclusive", None
    more = [math.ceil((times - 1) * n) for n in steps]
    return "inconclusive", MoreSteps(baseline=more[0], run=more[1])


def _times_wanted(half_width: float, room: float) -> float:
    """How many times the steps at hand make an interval fit `room`: its width shrinks with the root of their number."""
    return max(_LEAST_TIMES, (half_width / room) ** 2) if room > 0 else math.inf
