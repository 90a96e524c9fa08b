"""What advice on ESTs says: which rank should run which, what that brings, and why no other counts are better."""

from typing import Literal

import msgspec

from esprof.analyzers.advisors.job.growth import Growth
from esprof.core.errors import EsprofError
from esprof.core.plan import Plan
from esprof.core.types import Rank


class NotRecorded(EsprofError):
    """The run does not tell what is needed, and would not with more steps either."""


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank runs now, and should run."""

    rank: Rank
    device: str | None
    now: tuple[int, ...]
    advised: tuple[int, ...]
    est_us: float
    last_us: float
    update_us: float
    est_from: Literal["measured", "assumed"]
    now_us: float
    """What its ESTs and the update take it now, without waiting."""
    advised_us: float


class EstDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment, by rank."""

    ests: tuple[tuple[int, ...], ...]
    ranks: tuple[RankPlan, ...]


class CountCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """Why no other counts make the slowest rank faster: in any shorter time the ranks together end too few ESTs."""

    kind: Literal["count"] = "count"
    compute_us: float
    """What the slowest rank takes with the counts of the optimum, without waiting."""
    n_est: int
    ests_below: int
    """ESTs that all ranks together end in any shorter time."""
    advised_compute_us: float
    """What the slowest rank takes as advised: more where the replay with transfers prefers that."""


class EstAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What one elastic job should run where."""

    schema: Literal["esprof.advice/1"] = "esprof.advice/1"
    objective: Literal["step-time"] = "step-time"
    value: float
    """Predicted step time as advised, us."""
    low_us: float
    high_us: float
    baselines: dict[str, float]
    """Predicted step time otherwise, us: `now` is as measured."""
    gain_pct: float
    """What the step time falls by, in per cent of now."""
    error_pct: float
    """How far off such a prediction may be, in per cent of a step."""
    decision: EstDecision
    waste_pct: float
    """Share of what the devices could do that is left idle as advised (EasyScale's waste)."""
    certificate: CountCertificate
    growth: Growth | None
    """What other devices would bring; None where no inventory was asked about."""
    plan: Plan | None
    """None where the gain is less than twice the error: keep what you have."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...] = (
        "a link or a host that other jobs use at times",
        "memory of the host's caches that ESTs on one rank share",
    )
