"""The JSON document of `esprof replay`: how well the graph reproduces the run, and the prediction of each what-if."""

from statistics import fmean

import msgspec

from esprof.core.step_words import Unit
from esprof.core.types import Rank
from esprof.replay.whatif.memory.peak import PeakMemory
from esprof.run.overhead import Overhead
from esprof.run.run import RunWarning


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """One steady-state step: measured, and replayed with residuals."""

    step: int
    measured_us: float
    replayed_us: float
    error_pct: float


class StepLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An excluded step, with the reason."""

    step: int
    measured_us: float
    reason: str


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """A held-out step: its graph was replayed with durations fitted on other steps."""

    step: int
    measured_us: float
    predicted_us: float
    error_pct: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out test: durations fitted on some steady-state steps predict the others."""

    fit_steps: tuple[int, ...]
    held_out: tuple[HeldOut, ...]
    reason: str | None = None
    """Why no step was held out; None where one was."""

    @property
    def mean_error_pct(self) -> float | None:
        """Mean error of the held-out steps, in per cent, without its sign; None if no step was held out."""
        return fmean(abs(step.error_pct) for step in self.held_out) if self.held_out else None


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of the critical path on one rank."""

    rank: Rank
    us: float
    pct: float


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the replayed span: `classes` and `by_rank` each sum to `span_us`."""

    span_us: float
    classes: dict[str, float]
    by_rank: tuple[RankShare, ...]


class LinkLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a faster link than in a scenario with links of a given rate would gain anything."""

    bound: str
    """What bounds the steps at this rate."""
    saturating_bits_per_s: float | None
    """The least rate at which steps are within 1 % of those without communication; None if there is none."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of one scenario. Where `answered` is false, `reason` is given and the figures are None."""

    spec: str
    answered: bool
    predicted_us: float | None = None
    speedup: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    saving_us: float | None = None
    """By how much the mean step gets shorter; negative if longer."""
    saving_low_us: float | None = None
    saving_high_us: float | None = None
    """Ends of the 95 % interval of the saving. It is narrower than that of the step, since the scatter of the
    same steps cancels."""
    reason: str | None = None
    note: str | None = None
    link: LinkLimit | None = None
    """What limits a scenario with a rate, such as `network=600Gbit`; None for others."""
    peak: PeakMemory | None = None
    """Peak memory of the rank with the least room, if a term changes it and it is known; whether the scenario is answered
    or not."""
    peak_reason: str | None = None
    """Why the peak is unknown though a term changes it."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the recording the graph could connect."""

    collectives: int
    """Collective calls seen, over all ranks."""
    collectives_matched: int
    """Calls matched on all recorded members of their group; calls without peers count."""
    collectives_partial: int
    """Calls of `collectives_matched` with a member that recorded nothing in that step: waiting for it counts as
    communication."""
    p2p: int
    """Sends and receives seen, over all ranks."""
    p2p_matched: int
    kernels: int
    kernels_without_launch: int
    launches_without_kernel: int
    waits: int
    """Blocking calls and gaps that are long enough to need a cause."""
    waits_recorded: int
    """Waits whose cause was recorded."""
    waits_inferred: int
    """Waits whose cause was inferred from times."""
    waits_rejected: int
    """Waits between streams rejected as wrong pairs: the awaited work ended too late."""
    collectives_ended_early: int
    """Collectives that ended before their last member arrived: a sign of unaligned clocks."""
    unmatched_by_rank: dict[Rank, int]
    """Unmatched collective and point-to-point calls."""
    edges_dropped: int
    """Dependencies dropped because they formed a cycle."""
    lags_clamped: int
    """Lags of more than two seconds."""
    missing_ranks: tuple[Rank, ...]


class HostClockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Offset of a host's clock, from the ends of collectives, and the residuals after correction."""

    host: str
    ranks: tuple[Rank, ...]
    offset_us: float
    """Offset of the host's clock; positive: ahead."""
    drift_ppm: float
    """Drift of the host's clock, parts per million; positive: fast. 0 where the window is too short."""
    moved: bool
    """Whether the host's clock was corrected; small offsets are not."""
    residual_p50_us: float | None
    """Median distance of a rank's end of a collective from the median end of its peers, after correction; of the host's
    worst rank."""
    residual_p99_us: float | None
    """99th percentile of that distance."""


class GraphSize(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    edges: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Wall time to read the run, build its graph and replay it, s."""

    read: float
    build: float
    replay: float


class ReplayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof replay --json`."""

    schema: str = "esprof.replay/2"
    world_size: int
    unit: Unit = "step"
    """What is meant by a step: one of the job; or a block of repeated work, or the window, if no step is marked."""
    steps: tuple[StepTime, ...]
    left_out: tuple[StepLeftOut, ...]
    step_us: float
    """Mean measured duration of `steps` under the profiler: the baseline of the what-ifs."""
    scatter_pct: float | None
    """Half the width of the 95 % interval of `step_us`, in per cent of it; None for one step. Another run of the job may
    differ by more."""
    unprofiled_step_us: float | None
    """Median of the unprofiled steps next to the window; None for fewer than three."""
    overhead: Overhead | None
    """Profiler overhead: how much longer the median of `steps` is than `unprofiled_step_us`; None where unknown."""
    strict_error_pct: float
    """Error of the sum of `steps`, replayed without residuals."""
    explained_pct: float
    """Share of the critical path that is not residual, contention, or time in which an operation did not run."""
    known_error_pct: float | None
    """Error on this run: the mean held-out error or the error without residuals, whichever is larger. The interval of every
    what-if includes it. None where there are too few steps for a held-out test."""
    prediction: Prediction
    critical_path: CriticalPath
    what_if: tuple[WhatIf, ...]
    memory: tuple[PeakMemory, ...] = ()
    """Peak of each rank whose allocations were recorded."""
    coverage: Coverage
    clocks: tuple[HostClockAnswer, ...]
    graph: GraphSize
    timing_s: Timing
    warnings: tuple[RunWarning, ...]
