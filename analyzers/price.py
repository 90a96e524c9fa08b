"""What a cause costs that was measured on the steps of the whole run, and from which cost on a cause is told."""

from dataclasses import dataclass

MIN_PCT_OF_STEP = 1.0
"""A cause that costs less than this share of a step, in per cent, is no finding."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPrice:
    """A price that was measured on the steps of the whole run, where no replay can tell it."""

    saving_ns: float
    """What the mean step would gain, ns."""
    margin_ns: float
    """Half the width of its 95 % interval, ns."""
    step_ns: float
    """The mean step that would gain it, ns."""

    @property
    def is_worth_naming(self) -> bool:
        return 100 * self.saving_ns >= MIN_PCT_OF_STEP * self.step_ns
