"""Output of `esprof compare`, as types."""

from typing import Literal

import msgspec

from esprof.analyzers.ops.answer import OpKind
from esprof.analyzers.steps.job_steps import ComparedPhase
from esprof.core.step_words import Unit
from esprof.core.types import Bytes, Rank
from esprof.run.run import RunWarning

BEYOND_RECORDING = "other_steps"
SLOW_STEPS = "slow_steps"

MIN_UNLIKE = 0.05
"""Least relative difference in number or size of collectives: some steps have one more, such as those that log."""

Wait = Literal["loader_wait", "cpu_wait"]


class TimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A time of a mean step before and after, µs. `change_us` is after minus before, `low_us` and `high_us` its interval.

    The ends are None if a side has a single step, whose scatter is unknown.
    """

    before_us: float
    after_us: float
    change_us: float
    low_us: float | None
    high_us: float | None
    noise: bool
    """Whether the interval holds zero, or is unknown."""


class StepChange(TimeChange, frozen=True, kw_only=True):
    """The mean step of the job."""

    pct: float
    """Change in per cent of the step before."""
    p: float
    """Two-sided p-value of Mann-Whitney's test on block medians."""
    median_before_us: float
    median_after_us: float
    steps_before: int
    steps_after: int
    block: int
    """Steps per block."""
    detectable_us: float | None
    """Least change that would be found beyond noise four times in five."""


class PlaceChange(TimeChange, frozen=True, kw_only=True):
    """Time on the critical path by name: an operation, a collective, a place in the job's own code."""

    name: str
    """The name; for code it has no line number, which changes when the file is edited."""
    line: str | None
    """The line of code with most time; None for others."""


class PartChange(TimeChange, frozen=True, kw_only=True):
    """A part of the change of a step: the parts sum to it."""

    name: str
    """A class of the critical path, such as `communication`; `other_steps`: what the recorded steps do not show; or
    `slow_steps`: the distance of the mean step from the median one."""
    places: tuple[PlaceChange, ...]
    """By name, largest change first; the last sums all others. They sum to the part."""
    alike_pct: float | None
    """Change in per cent that most places share, by time; None if they differ, or are few."""


class RankChange(TimeChange, frozen=True, kw_only=True):
    """The own time of a rank in a mean step: without waiting for other ranks and without exposed communication."""

    rank: Rank
    alone: bool
    """Whether it changed and the other ranks did not."""


class OperatorChange(TimeChange, frozen=True, kw_only=True):
    """Own time of an operation, or total time of a module, on the device that computes; the mean over ranks."""

    name: str
    kind: OpKind
    calls_before: float
    calls_after: float


class CollectiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind per mean step and rank."""

    collective: str
    calls_before: float
    calls_after: float
    bytes_before: Bytes | None
    """Mean size of one; None where unknown."""
    bytes_after: Bytes | None
    us_before: float
    """Mean duration of one, without waiting for other ranks."""
    us_after: float

    @property
    def is_unlike(self) -> bool:
        """Whether the number or the size differs clearly: neither is subject to noise."""
        is_known = self.bytes_before is not None and self.bytes_after is not None
        sizes = (self.bytes_before or 0, self.bytes_after or 0) if is_known else (0, 0)
        return any(
            abs(after - before) > MIN_UNLIKE * max(before, after)
            for before, after in ((self.calls_before, self.calls_after), sizes)
        )


class CodeChange(TimeChange, frozen=True, kw_only=True):
    """Time at a place in the job's own code in the steps without profiler, from samples; the mean over ranks."""

    place: str
    """The innermost function of the job, as `file: function`, and the one that it calls. Lines may have moved."""
    line: str
    """Its line with most time, as `file(line): function`, in the run in which it takes more time."""


class WaitChange(TimeChange, frozen=True, kw_only=True):
    """A wait in the compared steps, on the rank that waits longest."""

    name: Wait


class SaveChange(msgspec.Struct, frozen=True, kw_only=True):
    """Saves of the job. A value is None where no save was recorded."""

    every_before: int | None
    """Steps from one save to the next."""
    every_after: int | None
    stops_before_us: float | None
    """Time by which a save prolongs the step in which it begins."""
    stops_after_us: float | None


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of one run alone."""

    id: str
    title: str
    saving_us: float
    is_new: bool
    """Whether the second run has it, and not the first."""


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    sources: tuple[str, ...]
    command: tuple[str, ...]
    world_size: int
    recorded_steps: tuple[int, ...]
    """Steady-state steps that were recorded: those whose critical path is known."""
    explained_pct: float


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof compare --json`. Changes are after minus before."""

    schema: str = "esprof.compare/1"
    verdict: str
    unit: Unit
    phase: ComparedPhase
    """The steps whose times are compared."""
    confidence: float
    """Probability that all intervals of a table hold their true values, if steps are independent."""
    before: ComparedRun
    after: ComparedRun
    step: StepChange
    without_cpu_wait: TimeChange | None
    """The change of a step without the time that ranks waited for a CPU; None where unknown."""
    parts: tuple[PartChange, ...]
    """Largest change first. They sum to `step.change_us`."""
    ranks: tuple[RankChange, ...]
    operators: tuple[OperatorChange, ...]
    """Those that differ, largest change first, at most 20."""
    collectives: tuple[CollectiveChange, ...]
    code: tuple[CodeChange, ...]
    """Those that differ beyond noise, largest change first, at most 20; empty without samples."""
    waits: tuple[WaitChange, ...]
    saves: SaveChange | None
    """None if neither run saves."""
    findings: tuple[FindingChange, ...]
    differs: tuple[str, ...]
    """Differences in hardware, world size or versions that were allowed."""
    warnings: tuple[RunWarning, ...]
