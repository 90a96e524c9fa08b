"""Result of `esprof verify --json`."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from esprof.analyzers.verified.pairs import Pairs
from esprof.analyzers.verified.sides import KnobValue, Side
from esprof.run.logs import Estimate, JobClass, ObservedOutcome, ReplayPrediction
from esprof.run.run import RunWarning

Verdict = Literal["held", "close", "unclear", "missed", "measured"]
"""`held`: the observed step lies in the predicted interval. `close`: it lies outside, but within the allowed error.
`unclear`: neither, but the predicted step lies in the interval of the observed one. `missed`: none of these. `measured`:
there was no prediction."""

_MAX_OVERHEAD_PCT = 15.0
"""Overhead of the profiler, per cent of a step, above which the result has a warning."""

_MAX_WAITING_PCT = 5.0
"""Time that a rank waits for a CPU, per cent of a step, above which the result has a warning."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two consecutive runs: of the unchanged job, and with the change."""

    before: Side
    after: Side


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `esprof verify --json`. All steps except those of `prediction` are without profiler."""

    schema: str = "esprof.verify/1"
    spec: str
    verdict: Verdict
    job: JobClass
    prediction: ReplayPrediction | None
    """The prediction, stored before any measurement; None if only a measurement was requested."""
    before: Estimate
    predicted: Estimate | None
    """The predicted step of a job whose step takes `before`."""
    observed: Estimate
    error_pct: float | None
    max_error_pct: float
    knobs: tuple[KnobValue, ...]
    pairs: tuple[Pair, ...]
    steps: int
    """Number of steps of each mean; 0 for all steps of the job."""
    warnings: tuple[RunWarning, ...]


def verified(
    spec: str,
    job: JobClass,
    pairs: Sequence[Pair],
    knobs: tuple[KnobValue, ...],
    prediction: ReplayPrediction | None,
    *,
    steps: int,
    max_error_pct: float,
) -> Verified:
    """Compare the pairs with `prediction`; without a prediction, report the measured effect of `spec`."""
    steps_us = pairs_of(pairs)
    outcome = steps_us.outcome(prediction, "verify") if prediction is not None else None
    verdict: Verdict = "measured"
    if outcome is not None:
        verdict = _verdict(outcome, max_error_pct)
    weaknesses = (
        _of_repeats(steps_us.observed, max_error_pct),
        _of_cpus([side for pair in pairs for side in (pair.before, pair.after)]),
        _of_prediction(prediction, steps_us.before, max_error_pct) if prediction is not None else (),
    )
    return Verified(
        spec=spec,
        verdict=verdict,
        job=job,
        prediction=prediction,
        before=steps_us.before,
        predicted=outcome.predicted if outcome is not None else None,
        observed=steps_us.observed,
        error_pct=outcome.error_pct if outcome is not None else None,
        max_error_pct=max_error_pct,
        knobs=knobs,
        pairs=tuple(pairs),
        steps=steps,
        warnings=tuple(warning for found in weaknesses for warning in found),
    )


def _verdict(outcome: ObservedOutcome, max_error_pct: float) -> Verdict:
    if outcome.held:
        return "held"
    if abs(outcome.error_pct) <= max_error_pct:
        return "close"
    low, high = outcome.observed.low_us, outcome.observed.high_us
    is_known = low is None or high is None or not low <= outcome.predicted.us <= high
    return "missed" if is_known else "unclear"


def pairs_of(pairs: Sequence[Pair]) -> Pairs:
    """The mean steps of the pairs, µs."""
    return Pairs([pair.before.step_us for pair in pairs], [pair.after.step_us for pair in pairs])


def _of_repeats(observed: Estimate, max_error_pct: float) -> Iterator[RunWarning]:
    if observed.high_us is None:
        yield RunWarning("one-pair", "the error of the figures is unknown with a single pair")
    elif (width := _over_pct(observed.high_us, observed.us)) > max_error_pct:
        text = f"repeats differ so much that the observed step is only known to ±{width:.0f} %"
        yield RunWarning("repeats-apart", text)


def _of_cpus(sides: Sequence[Side]) -> Iterator[RunWarning]:
    waited = [100 * side.cpu_wait_us / side.step_us for side in sides if side.cpu_wait_us is not None]
    if waited and max(waited) > _MAX_WAITING_PCT:
        text = f"ranks waited for a CPU during {min(waited):.0f} to {max(waited):.0f} % of a step"
        yield RunWarning("cpu-wait", f"{text}: other work on the machine or the job's own processes held the CPUs")


def _of_prediction(prediction: ReplayPrediction, before: Estimate, max_error_pct: float) -> Iterator[RunWarning]:
    plain_us = prediction.unprofiled_step_us
    if plain_us is None:
        return
    over = _over_pct(prediction.step_us, plain_us)
    if over > _MAX_OVERHEAD_PCT:
        text = f"the profiler made the recorded steps {over:.0f} % longer; without it, the change may save less"
        yield RunWarning("profiled", text)
    apart = _over_pct(before.us, plain_us)
    if abs(apart) > max_error_pct:
        change = f"{abs(apart):.0f} % {'longer' if apart > 0 else 'shorter'}"
        yield RunWarning("drifted", f"a step of the unchanged job is {change} than when it was recorded")


def _over_pct(us: float, of_us: float) -> float:
    return 100 * (us / of_us - 1)
