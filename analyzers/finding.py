"""A Finding: one cause of lost time, with its evidence and its price."""

from datetime import date
from typing import Literal

import msgspec

from esprof.analyzers.evidence import Evidence
from esprof.core.types import Rank
from esprof.run.overhead import Overhead
from esprof.run.run import RunWarning

CPU_CONTENTION = "ESP404"
"""Id of the finding that training threads wait for a CPU, by which others are less sure."""

Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause. `id` is stable (`ESP101`); `saving_us` is what replay says a step would gain without the cause."""

    id: str
    title: str
    severity: Severity
    ranks: tuple[Rank, ...]
    saving_us: float
    saving_low_us: float
    saving_high_us: float
    """Ends of the 95 % interval of what mending it would save, as `esprof replay` has it; 0 where there is no price."""
    saving_pct: float
    saving_device_hours_per_day: float
    """Device-hours a day that the saving is worth when the job runs all day, on the ranks that the run has."""
    confidence: Confidence
    evidence: dict[str, Evidence]
    """What the finding rests on, by name, such as `late_per_step`."""
    advice: str
    command: str | None = None
    """The esprof command that shows or proves it."""

    @property
    def is_saving(self) -> bool:
        """Whether mending it saves anything for certain: its interval does not hold zero."""
        return self.saving_low_us > 0


class Ignored(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that somebody knows of and has asked to leave out, why, and the last day on which it is left out."""

    finding: Finding
    reason: str
    until: date


class RankBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank's mean step goes, in microseconds. The parts sum to `step_us` exactly.

    Every instant counts once, by the first that applies: `compute` (the device computes), `exposed_communication`
    (only a transfer runs), `copy` (only a copy between host and device runs), `wait` (for a peer to arrive at a collective,
    or all of a collective whose peers are not in the run), `input_stall` (the loader), `host` (the CPU works or runs
    unrecorded code while the device has nothing to do), `idle` (none of these).
    """

    rank: Rank
    device: str | None
    host_name: str | None
    step_us: float
    compute: float
    exposed_communication: float
    copy: float
    wait: float
    input_stall: float
    host: float
    idle: float
    overlap_pct: float | None
    """Share of the time with transfers under way, in per cent, in which the device computes; None without transfers."""


PARTS = ("compute", "exposed_communication", "copy", "wait", "input_stall", "host", "idle")
"""The parts of a `RankBreakdown`, in the order in which they are drawn."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Of the ranks that the run has. `samples_per_s` and `tokens_per_s` are None where the run does not tell."""

    steps_per_s: float
    samples_per_s: float | None
    tokens_per_s: float | None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof diagnose --json`: a hang or death first, then the findings that cost most time.

    What comes of a replay is None or empty where no window was recorded that could be replayed.
    """

    schema: str = "esprof.diagnose/1"
    verdict: str
    findings: tuple[Finding, ...]
    ignored: tuple[Ignored, ...] = ()
    """Findings that were asked to be left out: they are no part of `findings`, and the verdict is not of them."""
    step_us: float | None
    """Mean of `steps`, or, where none was recorded, the mean of all that ended; None where none did."""
    scatter_pct: float | None
    """As in the answer of `esprof replay`: what chance alone makes of the mean of as many steps."""
    unprofiled_step_us: float | None
    """As in the answer of `esprof replay`, and so is `overhead`: what a step takes without the profiler."""
    overhead: Overhead | None
    steps: tuple[int, ...]
    world_size: int
    missing_ranks: tuple[Rank, ...]
    """The ranks of the job of which the run has nothing: all figures are of the others."""
    breakdown: tuple[RankBreakdown, ...]
    throughput: Throughput | None
    explained_pct: float | None
    replay_error_pct: float | None
    """Worst error of a steady step replayed with residuals kept."""
    warnings: tuple[RunWarning, ...]

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict} Findings: {', '.join(one.id for one in self.findings) or 'none'}>"
