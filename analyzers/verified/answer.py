"""`esprof verify --json`, as types."""

from typing import Literal

import msgspec

from esprof.analyzers.verified.pairs import Pairs
from esprof.analyzers.verified.sides import Knob
from esprof.trace.ledger import Estimate, JobClass, Promise
from esprof.trace.run import Warning

Verdict = Literal["held", "close", "missed", "measured"]
"""`held`: the step observed lies in the interval promised. `close`: it does not, and is no farther from the promise than
allowed. `missed`: neither. `measured`: nothing was promised."""


_MOST_OVERHEAD_PCT = 15.0
"""By how much longer steps may be under the profiler before that is said."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Mean steps of two runs that followed one another, µs."""

    before_us: float
    after_us: float


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof verify --json`. All steps but those of `promise` are steps without profiler."""

    schema: str = "esprof.verify/1"
    spec: str
    verdict: Verdict
    job: JobClass
    promise: Promise | None
    """What was written down before anything was measured; None where only a measurement was asked for."""
    before: Estimate
    predicted: Estimate | None
    """The step promised, of a job whose step takes `before`."""
    observed: Estimate
    error_pct: float | None
    max_error_pct: float
    knobs: tuple[Knob, ...]
    pairs: tuple[Pair, ...]
    steps: int
    """Steps that each mean is of; 0 for all that the job makes."""
    warnings: tuple[Warning, ...]


def verified(
    spec: str,
    job: JobClass,
    pairs: Pairs,
    knobs: tuple[Knob, ...],
    promise: Promise | None,
    *,
    steps: int,
    max_error_pct: float,
) -> Verified:
    """What came of `promise`, or of `spec` where nothing was promised."""
    outcome = pairs.outcome(promise, "verify") if promise is not None else None
    verdict: Verdict = "measured"
    if outcome is not None:
        verdict = "held" if outcome.held else "close" if abs(outcome.error_pct) <= max_error_pct else "missed"
    return Verified(
        spec=spec,
        verdict=verdict,
        job=job,
        promise=promise,
        before=pairs.before,
        predicted=outcome.predicted if outcome is not None else None,
        observed=pairs.observed,
        error_pct=outcome.error_pct if outcome is not None else None,
        max_error_pct=max_error_pct,
        knobs=knobs,
        pairs=tuple(
            Pair(before_us=before, after_us=after)
            for before, after in zip(pairs.before_us, pairs.after_us, strict=True)
        ),
        steps=steps,
        warnings=tuple(_warnings(pairs, promise, max_error_pct)),
    )


def _warnings(pairs: Pairs, promise: Promise | None, max_error_pct: float) -> list[Warning]:
    found, observed, before = [], pairs.observed, pairs.before
    if observed.high_us is None:
        found.append(Warning("one-pair", "of one pair nothing tells how far its figures may be off"))
    elif 100 * (observed.high_us / observed.us - 1) > max_error_pct:
        width = 100 * (observed.high_us / observed.us - 1)
        found.append(
            Warning("repeats-apart", f"repeats lie so far apart that the step observed is only known to ±{width:.0f} %")
        )
    if promise is not None and promise.unprofiled_step_us is not None:
        over = 100 * (promise.step_us / promise.unprofiled_step_us - 1)
        if over > _MOST_OVERHEAD_PCT:
            text = f"the profiler made the steps that the promise is told of {over:.0f} % longer: what it makes of the "
            found.append(Warning("profiled", text + "change may differ"))
    was = promise.unprofiled_step_us if promise is not None else None
    if was is not None and abs(before.us / was - 1) > max_error_pct / 100:
        change = 100 * (before.us / was - 1)
        text = f"as it is, the job takes {abs(change):.0f} % {'longer' if change > 0 else 'less'} than when it was recorded"
        found.append(Warning("drifted", text))
    return found
