"""The answer of `esprof replay`, as typed JSON: how well the graph reproduces the run, and what each what-if would give."""

import msgspec

from esprof.core.types import Rank
from esprof.run.overhead import Overhead
from esprof.run.run import RunWarning


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """One steady step: measured against replayed with residuals kept."""

    step: int
    measured_us: float
    replayed_us: float
    error_pct: float


class StepLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is not part of the answer, and why."""

    step: int
    measured_us: float
    reason: str


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """A step that the prediction has not seen: its graph, with durations fitted on the other steps."""

    step: int
    measured_us: float
    predicted_us: float
    error_pct: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What durations fitted on some steady steps say of the other steady steps."""

    fit_steps: tuple[int, ...]
    held_out: tuple[HeldOut, ...]
    reason: str | None = None
    """Why there is no held-out step, where there is none."""


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the critical path that lies on one rank."""

    rank: Rank
    us: float
    pct: float


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the replayed span: `classes` and `by_rank` each sum to `span_us`."""

    span_us: float
    classes: dict[str, float]
    by_rank: tuple[RankShare, ...]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario. Where `answered` is false, `reason` says why and the figures are None."""

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
    """Ends of the saving's own interval. It is narrower than that of the step: both have the same steps, however they
    scatter."""
    reason: str | None = None
    note: str | None = None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What the graph could and could not tie together."""

    collectives: int
    """Collective calls seen, over all ranks."""
    collectives_matched: int
    """Calls that were matched with those of all peers that the run has, or that have no peer."""
    collectives_partial: int
    """Those of `collectives_matched` that have a member of which nothing was recorded, in that step or at all: in these,
    waiting for that member and transfer cannot be told apart."""
    p2p: int
    """Sends and receives seen, over all ranks."""
    p2p_matched: int
    kernels: int
    kernels_without_launch: int
    launches_without_kernel: int
    waits: int
    """Blocking calls and gaps long enough to need a reason."""
    waits_recorded: int
    """Waits whose reason stands in the trace."""
    waits_inferred: int
    """Waits whose reason was found by time alone."""
    waits_rejected: int
    """Waits between streams that were paired wrongly: what was waited for ended too late."""
    collectives_ended_early: int
    """Transfers that ended before their last peer arrived: a sign of clocks out of step."""
    unmatched_by_rank: dict[Rank, int]
    """Calls, collective or point to point, that have peers and could not be matched with them."""
    edges_dropped: int
    """Dependencies that formed a cycle."""
    lags_clamped: int
    """Lags of more than two seconds."""
    missing_ranks: tuple[Rank, ...]


class HostClockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A host's clock against those of the other hosts, by the ends of collectives, and what stays apart afterwards."""

    host: str
    ranks: tuple[Rank, ...]
    offset_us: float
    """By how much the host's clock is ahead."""
    drift_ppm: float
    """By how much the host's clock runs too fast, parts in a million; 0 where the window is too short to tell."""
    moved: bool
    """Whether the host's clock was set right: a clock that is nearly right is left alone."""
    residual_p50_us: float | None
    """Median distance of a rank's end of a collective from the median end of its peers, once clocks are set right; that
    of the host's worst rank."""
    residual_p99_us: float | None
    """99th percentile of the distance of a rank's end of a collective from the median end of its peers, once clocks are set
    right; that of the host's worst rank."""


class GraphSize(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    edges: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Wall time of reading the run, of building its graph and of replaying it, s."""

    read: float
    build: float
    replay: float


class ReplayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof replay --json`."""

    schema: str = "esprof.replay/2"
    world_size: int
    steps: tuple[StepTime, ...]
    left_out: tuple[StepLeftOut, ...]
    step_us: float
    """Mean measured time of `steps`, under the profiler: what the what-ifs are compared with."""
    scatter_pct: float | None
    """Half the width of the 95 % interval of `step_us`, in per cent of it: how far the mean of as many other steps may be
    off by chance alone. None for one step. Another run of the job may differ by more."""
    unprofiled_step_us: float | None
    """Median of the steps without profiler next to the window; None where fewer than three were seen."""
    overhead: Overhead | None
    """By how much the median of `steps` is longer than `unprofiled_step_us`; None where that cannot be told."""
    strict_error_pct: float
    """Error of the sum of `steps` when residuals are dropped."""
    explained_pct: float
    """Share of the critical path that is no residual, no contention, and no operation that did not run."""
    known_error_pct: float | None
    """Error known for this very run: of the steps that a fit has not seen (mean), or of the replay without residuals,
    whichever is worse. Every what-if's interval holds it. None where too few steps were recorded to hold any back."""
    prediction: Prediction
    critical_path: CriticalPath
    what_if: tuple[WhatIf, ...]
    coverage: Coverage
    clocks: tuple[HostClockAnswer, ...]
    graph: GraphSize
    timing_s: Timing
    warnings: tuple[RunWarning, ...]
