"""Prices that were measured on the steps of the whole run, and the least price of a finding."""

from dataclasses import dataclass

MIN_PCT_OF_STEP = 1.0
"""Least cost of a finding, in per cent of a step."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPrice:
    """A price that was measured on the steps of the whole run, where replay cannot estimate it."""

    saving_ns: float
    """Saving of the mean step, ns."""
    margin_ns: float
    """Half the width of its 95 % interval, ns."""
    step_ns: float
    """Duration of that mean step, ns."""

    @property
    def is_worth_reporting(self) -> bool:
        return 100 * self.saving_ns >= MIN_PCT_OF_STEP * self.step_ns
