"""Forecast of a loss from its first steps, with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import f as f_distribution

MIN_STEPS = 8
"""Fewest steps from which a loss is forecast."""

_CONFIDENCE = 0.95
_RATES = 400
"""Rates of decay that are tried."""


@dataclass(frozen=True)
class Forecast:
    """Loss expected at a later step, without the noise of its batch, and the ends of its 95 % interval."""

    loss: float
    low: float
    high: float


def forecast(losses: Sequence[float], step: int) -> Forecast | None:
    """The loss after `step` steps by the fit of a·exp(-r·x) + c to the first steps (the form of AutoLRS, Jin et al., ICLR
    2021); None for fewer than `MIN_STEPS` steps or a loss that is not finite.

    The interval is that of the likelihood profile of r, between no visible curve within `step` steps and a decay within one
    step. It assumes this form: losses that fall like a power of x lie above it. Deterministic for given losses.
    """
    y = np.asarray(losses, float)
    if len(y) < MIN_STEPS or not np.isfinite(y).all():
        return None
    x = np.arange(1, len(y) + 1)
    rates = np.geomspace(0.1 / step, 1.0, _RATES)
    squares, expected = np.empty(_RATES), np.empty(_RATES)
    for n, rate in enumerate(rates):
        basis = np.column_stack([np.exp(-rate * x), np.ones_like(x)])
        (scale, floor), *_ = np.linalg.lstsq(basis, y, rcond=None)
        squares[n] = ((y - basis @ (scale, floor)) ** 2).sum()
        expected[n] = scale * np.exp(-rate * step) + floor
    free = len(y) - 3
    # Of a profile likelihood: rates whose residual is not worse than the best one's by more than noise explains.
    limit = squares.min() * (1 + f_distribution.ppf(_CONFIDENCE, 1, free) / free)
    possible = expected[squares <= limit]
    return Forecast(float(expected[squares.argmin()]), float(possible.min()), float(possible.max()))
