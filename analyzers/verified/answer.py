"""`esprof verify --json`, as types."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from esprof.analyzers.verified.pairs import Pairs
from esprof.analyzers.verified.sides import KnobValue, Side
from esprof.run.logs import Estimate, JobClass, ReplayPromise
from esprof.run.run import RunWarning

Verdict = Literal["held", "close", "missed", "measured"]
"""`held`: the step observed lies in the interval promised. `close`: it does not, and is no farther from the promise than
allowed. `missed`: neither. `measured`: nothing was promised."""

_MAX_OVERHEAD_PCT = 15.0
"""By how much longer steps may be under the profiler before that is said."""

_MAX_WAITING_PCT = 5.0
"""Share of a step for which a rank may wait for a CPU before that is said."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs that followed one another: of the job as it is, and with the change."""

    before: Side
    after: Side


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof verify --json`. All steps but those of `promise` are steps without profiler."""

    schema: str = "esprof.verify/1"
    spec: str
    verdict: Verdict
    job: JobClass
    promise: ReplayPromise | None
    """What was written down before anything was measured; None where only a measurement was asked for."""
    before: Estimate
    predicted: Estimate | None
    """The step promised, of a job whose step takes `before`."""
    observed: Estimate
    error_pct: float | None
    max_error_pct: float
    knobs: tuple[KnobValue, ...]
    pairs: tuple[Pair, ...]
    steps: int
    """Steps that each mean is of; 0 for all that the job makes."""
    warnings: tuple[RunWarning, ...]


def verified(
    spec: str,
    job: JobClass,
    pairs: Sequence[Pair],
    knobs: tuple[KnobValue, ...],
    promise: ReplayPromise | None,
    *,
    steps: int,
    max_error_pct: float,
) -> Verified:
    """What came of `promise`, or of `spec` where nothing was promised."""
    steps_us = pairs_of(pairs)
    outcome = steps_us.outcome(promise, "verify") if promise is not None else None
    verdict: Verdict = "measured"
    if outcome is not None:
        verdict = "held" if outcome.held else "close" if abs(outcome.error_pct) <= max_error_pct else "missed"
    weaknesses = (
        _of_repeats(steps_us.observed, max_error_pct),
        _of_cpus([side for pair in pairs for side in (pair.before, pair.after)]),
        _of_promise(promise, steps_us.before, max_error_pct) if promise is not None else (),
    )
    return Verified(
        spec=spec,
        verdict=verdict,
        job=job,
        promise=promise,
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


def pairs_of(pairs: Sequence[Pair]) -> Pairs:
    """Their steps alone."""
    return Pairs([pair.before.step_us for pair in pairs], [pair.after.step_us for pair in pairs])


def _of_repeats(observed: Estimate, max_error_pct: float) -> Iterator[RunWarning]:
    if observed.high_us is None:
        yield RunWarning("one-pair", "of one pair nothing tells how far its figures may be off")
    elif (width := _over_pct(observed.high_us, observed.us)) > max_error_pct:
        text = f"repeats lie so far apart that the step observed is only known to ±{width:.0f} %"
        yield RunWarning("repeats-apart", text)


def _of_cpus(sides: Sequence[Side]) -> Iterator[RunWarning]:
    waited = [100 * side.cpu_wait_us / side.step_us for side in sides if side.cpu_wait_us is not None]
    if waited and max(waited) > _MAX_WAITING_PCT:
        text = f"ranks waited for a CPU for {min(waited):.0f} to {max(waited):.0f} % of a step"
        yield RunWarning("cpu-wait", f"{text}: for other work on the machine, or for the job's own processes")


def _of_promise(promise: ReplayPromise, before: Estimate, max_error_pct: float) -> Iterator[RunWarning]:
    plain_us = promise.unprofiled_step_us
    if plain_us is None:
        return
    over = _over_pct(promise.step_us, plain_us)
    if over > _MAX_OVERHEAD_PCT:
        text = f"the prediction is for steps that the profiler made {over:.0f} % longer; without it, a change may save less"
        yield RunWarning("profiled", text)
    apart = _over_pct(before.us, plain_us)
    if abs(apart) > max_error_pct:
        change = f"{abs(apart):.0f} % {'longer' if apart > 0 else 'less'}"
        yield RunWarning("drifted", f"as it is, the job takes {change} than when it was recorded")


def _over_pct(us: float, of_us: float) -> float:
    return 100 * (us / of_us - 1)
