"""Advice on the interval of checkpoints, as types."""

from typing import Literal

import msgspec

from esprof.core.plan import Plan

MIN_CHANGE = 0.1
"""Smallest change of the interval that is worth a plan, as a share of the present one."""


class MeanTime(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with the 95 % interval of the mean of as many saves in another run, us."""

    mean_us: float
    low_us: float
    high_us: float
    count: int


class SavesMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What the saves of the recorded job cost."""

    names: tuple[str, ...]
    """The functions that save."""
    count: int
    every: int
    """Steps from one save to the next."""
    step_us: float
    """A mean step in which no save runs."""
    stops: MeanTime
    """By how much longer the step in which a save begins is."""
    calls_us: float
    """Mean time of it in the functions that save."""
    writes: MeanTime | None
    """Time until a save is durable; None if none is written in the background."""
    staging_us: float | None
    """Time until its state is copied; None if that was not recorded."""
    slows: MeanTime | None
    """By how much longer a step is during which a save is written; None if none is written in the background."""


class SaveInterval(msgspec.Struct, frozen=True, kw_only=True):
    """A job that saves every `every` steps."""

    every: int
    overhead_pct: float
    """Time lost to saves, in per cent of the steps without them."""
    low_pct: float
    high_pct: float
    step_us: float
    """The mean step with its share of the saves."""
    worst_loss_us: float
    """Most work that a failure can lose."""
    waste_pct: float | None
    """Time lost to saves and failures; None if the time between failures is not known."""


class CheckpointAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one job."""

    schema: Literal["esprof.checkpoint-advice/1"] = "esprof.checkpoint-advice/1"
    objective: Literal["overhead", "waste"]
    """`overhead`: the shortest interval within the bound. `waste`: the interval that loses least to saves and failures, but
    none shorter than that."""
    measured: SavesMeasured
    bound_pct: float
    mtbf_us: float | None
    restart_us: float
    advised: int
    """Steps between two saves."""
    shortest_within_bound: int
    best: int | None
    """The interval that loses least to saves and failures; None without the time between failures."""
    flat: tuple[int, int] | None
    """The intervals that lose at most 1 % of the run time more than the best."""
    intervals: tuple[SaveInterval, ...]
    """The present interval, half and twice of it, and the advised ones, by length."""
    gain_pct: float
    """Reduction of the mean step, in per cent of the present one; negative if saves become more frequent."""
    plan: Plan | None
    """None if the interval stays."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...] = (
        "storage that is slower at other times",
        "failures that come in groups",
    )

    def of(self, every: int) -> SaveInterval:
        """The answer for a listed interval."""
        return next(one for one in self.intervals if one.every == every)
