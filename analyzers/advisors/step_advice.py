"""What all advice has in common that promises a shorter step."""

import msgspec

MIN_GAIN_IN_ERRORS = 2.0
"""Least gain worth a change, as a multiple of the prediction's error."""


class StepAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted step, compared with others."""

    schema: str
    objective: str
    value: float
    """Predicted step as advised, us."""
    low_us: float
    high_us: float
    baselines: dict[str, float]
    """Steps otherwise, us: `now` is as measured."""
    gain_pct: float
    """Reduction of the step, in per cent of the present one."""
    error_pct: float
    """Known error of such predictions, in per cent of a step."""
