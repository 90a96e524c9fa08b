"""Prices that were measured on the steps of the whole run, and the least price of a finding."""

from dataclasses import dataclass, replace

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
    least_ns: float = 0.0
    """Least saving that the number of measured events makes certain, ns, however much the margin is."""

    @property
    def low_ns(self) -> float:
        """Lower end of the interval, ns."""
        return max(self.saving_ns - self.margin_ns, self.least_ns)

    def times(self, factor: float) -> "MeasuredPrice":
        """So many times the saving, of the same step."""
        scaled = {name: factor * getattr(self, name) for name in ("saving_ns", "margin_ns", "least_ns")}
        return replace(self, **scaled)

    @property
    def is_worth_reporting(self) -> bool:
        return 100 * self.saving_ns >= MIN_PCT_OF_STEP * self.step_ns
