"""Output of `esprof compare --to-loss`, as types."""

from typing import Literal

import msgspec

Better = Literal["lower", "higher"]
Outcome = Literal["a", "b", "no difference shown", "too few runs"]
"""Which side reaches the target sooner."""


MeasureName = Literal["seconds", "steps", "seconds_per_step"]


class RunToTarget(msgspec.Struct, frozen=True, kw_only=True):
    """How one training came to the target: between the evaluation before, and the one that found it reached."""

    path: str
    evaluations: int
    best: float
    reached: bool
    step: float | None
    step_before: float | None
    seconds: float | None
    seconds_before: float | None
    """None if the target was not reached, or the log lacks the column; `_before` also at the first evaluation."""


class TargetMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of all trainings of both sides. Those that never reach the target count as infinite."""

    name: MeasureName
    median_a: float | None
    median_b: float | None
    """None if infinite."""
    ratio: float | None
    """Median of A over median of B: above 1, B needs less. None if a median is infinite."""
    low: float
    high: float | None
    """95 % interval of `ratio`, from a percentile bootstrap over trainings; None if infinite."""
    p: float
    """Two-sided p-value of the exact permutation test on ranks."""


class NearbyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The same comparison at another target, since the sooner side may change with it."""

    target: float
    reached_a: int
    reached_b: int
    ratio: float | None
    """Ratio of the two sides by the first measure."""


class TargetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether B reaches the target sooner than A."""

    schema: Literal["esprof.to-target/1"] = "esprof.to-target/1"
    target: float
    better: Better
    window: int
    """The target is reached when the median of this many evaluations, up to the current one, reaches it."""
    outcome: Outcome
    verdict: str
    a: tuple[RunToTarget, ...]
    b: tuple[RunToTarget, ...]
    measures: tuple[TargetMeasure, ...]
    """Seconds and steps to the target, and seconds of a step, as far as the logs have them."""
    smallest_p: float
    """The least p-value that so many trainings can have."""
    nearby: tuple[NearbyTarget, ...]
    declined: dict[MeasureName, str]
    """Measures that the logs lack the evidence for, and why."""
