"""Prices that were measured on the steps of the whole run, and the least price of a finding."""

from dataclasses import dataclass

import numpy as np

from esprof.core.statistics import share_interval

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

    @property
    def is_worth_reporting(self) -> bool:
        return 100 * self.saving_ns >= MIN_PCT_OF_STEP * self.step_ns


def least_of_events(values: np.ndarray) -> float:
    """Lower end of the 95 % interval of the mean of `values`, float64[steps], which are 0 in all steps but few.

    Student's interval of such a mean contains zero until there are five or so, however certain each one is. Only their
    number is random: its exact lower limit (`share_interval`) times the smallest event.
    """
    events = values[values > 0]
    return share_interval(len(events), len(values))[0] * float(events.min()) if len(events) else 0.0
