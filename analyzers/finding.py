"""Findings, each a cause of lost time with its evidence and price, and the Diagnosis that holds them."""

from datetime import date
from typing import Literal

import msgspec

from esprof.analyzers.evidence import Evidence
from esprof.core.step_words import Unit
from esprof.core.types import Rank
from esprof.run.overhead import Overhead
from esprof.run.run import RunWarning

CPU_CONTENTION = "ESP404"
"""Id of the finding that training threads wait for a CPU, which makes other findings less certain."""

GPU_BOUND = "ESP704"
"""Id of the finding that the GPU computes for nearly all of the step, which names its kernels."""

Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time. `id` is stable (`ESP101`); `saving_us` is the estimated saving of a step without the cause."""

    id: str
    title: str
    severity: Severity
    ranks: tuple[Rank, ...]
    saving_us: float
    """Saving of a step in addition to the causes upstream of it, so that savings add up (`esprof.analyzers.losses`)."""
    saving_low_us: float
    saving_high_us: float
    """Ends of the 95 % confidence interval of `saving_us`, as in `esprof replay`; 0 if there is no price."""
    saving_pct: float
    saving_device_hours_per_day: float
    """Saving in device-hours a day if the job runs all day on the ranks of the run."""
    confidence: Confidence
    evidence: dict[str, Evidence]
    """Measured values by name, such as `late_per_step`."""
    advice: str
    what_if: str | None = None
    """The scenario whose saving is the price; None if the price is measured or unknown."""
    command: str | None = None
    """The esprof command that shows what the scenario saves alone."""
    is_bound: bool = False
    """Whether the scenario is no remedy, so that any remedy saves less."""
    symptoms: tuple["Finding", ...] = ()
    """Findings that see the same lost time elsewhere, each with the saving that it has alone."""

    @property
    def is_saving(self) -> bool:
        """Whether the saving is statistically significant: its interval does not contain zero."""
        return self.saving_low_us > 0

    @property
    def is_doubtful(self) -> bool:
        """Whether it may save less than half of what is predicted."""
        return self.saving_low_us < self.saving_us / 2

    @property
    def is_vague(self) -> bool:
        """Whether the interval of the saving is wider than the saving."""
        return self.saving_high_us - self.saving_low_us > self.saving_us


class Ignored(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that the user's configuration excludes, the reason, and the last day of the exclusion."""

    finding: Finding
    reason: str
    until: date


class RankBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one rank's mean step by activity, in microseconds. The parts sum to `step_us` exactly.

    Every instant counts once, under the first that applies: `compute` (the device computes), `exposed_communication`
    (only communication runs), `copy` (only a copy between host and device runs), `wait` (for a peer to arrive at a
    collective, or all of a collective whose peers are not in the run), `input_stall` (waiting for the loader), `host` (the
    CPU works or runs unrecorded code while the device idles), `idle` (none of these).
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
    """Share of communication time in which the device computes, in per cent; None without communication."""


ACTIVITIES = ("compute", "exposed_communication", "copy", "wait", "input_stall", "host", "idle")
"""Fields of a `RankBreakdown` that partition the step, in display order."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of the ranks of the run. `samples_per_s` and `tokens_per_s` are None where unknown."""

    steps_per_s: float
    samples_per_s: float | None
    tokens_per_s: float | None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof diagnose --json`: a hang or death first, then the findings by cost.

    Fields that need a replay are None or empty if the run has no window that can be replayed.
    """

    schema: str = "esprof.diagnose/2"
    verdict: str
    findings: tuple[Finding, ...]
    joint_saving_us: float
    """Saving of a step if the causes of all findings are fixed: the sum of their savings."""
    uncertain: tuple[Finding, ...] = ()
    """Findings whose saving may be nothing: its interval contains zero."""
    ignored: tuple[Ignored, ...] = ()
    """Findings excluded by the user's configuration; `findings` and the verdict do not contain them."""
    unit: Unit = "step"
    """What is meant by a step: one of the job; or a block of repeated work, or the window, if no step is marked."""
    step_us: float | None
    """Mean of `steps` or, if none was recorded, of all steps that ended; None if none did."""
    scatter_pct: float | None
    """Random variation of the mean of that many steps, as in `esprof replay`."""
    unprofiled_step_us: float | None
    """Duration of a step without the profiler, as in `esprof replay`; so is `overhead`."""
    overhead: Overhead | None
    steps: tuple[int, ...]
    world_size: int
    missing_ranks: tuple[Rank, ...]
    """Ranks of the job that are missing from the run; all figures cover the others only."""
    breakdown: tuple[RankBreakdown, ...]
    throughput: Throughput | None
    explained_pct: float | None
    replay_error_pct: float | None
    """Worst error of a steady-state step, replayed with residuals."""
    warnings: tuple[RunWarning, ...]

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict} Findings: {', '.join(one.id for one in self.findings) or 'none'}>"
