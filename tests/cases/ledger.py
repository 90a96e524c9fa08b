"""Synthetic predictions and their outcomes."""

from esprof.analyzers.verified.pairs import Pairs
from esprof.run.logs import JobClass, ObservedOutcome, ReplayPrediction

GLOO = JobClass(backend="gloo", devices="CPU", world_size=2, gradients="DDP")


def predicted(
    spec: str,
    *,
    step_us: float = 200.0,
    predicted_us: float = 150.0,
    saving_us: tuple[float, float] = (40.0, 60.0),
    job: JobClass = GLOO,
    unprofiled_step_us: float | None = None,
) -> ReplayPrediction:
    """A prediction of a step of `predicted_us`; `saving_us` is the interval of the saving."""
    low, high = saving_us
    return ReplayPrediction(
        spec=spec,
        terms=tuple(dict.fromkeys(term.partition("=")[0] for term in spec.split(","))),
        job=job,
        step_us=step_us,
        predicted_us=predicted_us,
        low_us=step_us - high,
        high_us=step_us - low,
        saving_low_us=low,
        saving_high_us=high,
        known_error_pct=1.0,
        unprofiled_step_us=unprofiled_step_us,
        note=None,
        versions={"python": "3.11.7", "torch": "2.13.0"},
    )


def outcome_of(prediction: ReplayPrediction, after_share: float = 0.75) -> ObservedOutcome:
    """The outcome of a prediction: steps take `after_share` of those before, which took 100 µs."""
    return Pairs([100.0, 100.0], [100 * after_share, 100 * after_share]).outcome(prediction, "verify")
