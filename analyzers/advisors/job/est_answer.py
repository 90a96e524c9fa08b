"""Advice on ESTs, as types: the assignment to ranks, its gain, and the proof that no other counts are faster."""

from typing import Literal

import msgspec

from esprof.analyzers.advisors.job.growth import Growth
from esprof.analyzers.advisors.step_advice import StepAdvice
from esprof.core.errors import EsprofError
from esprof.core.plan import Plan
from esprof.core.types import Rank


class NotRecorded(EsprofError):
    """The run lacks data that more steps would not provide."""


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Present and advised ESTs of one rank."""

    rank: Rank
    device: str | None
    now: tuple[int, ...]
    advised: tuple[int, ...]
    est_us: float
    last_us: float
    update_us: float
    est_from: Literal["measured", "assumed"]
    now_us: float
    """Present time of its ESTs and the update, without waiting."""
    advised_us: float


class EstDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment, by rank."""

    ests: tuple[tuple[int, ...], ...]
    ranks: tuple[RankPlan, ...]


class CountCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """Proof that no other counts make the slowest rank faster: in any shorter time the ranks complete too few ESTs."""

    kind: Literal["count"] = "count"
    compute_us: float
    """Time of the slowest rank with the optimal counts, without waiting."""
    n_est: int
    ests_below: int
    """ESTs that all ranks together complete in any shorter time."""
    advised_compute_us: float
    """Time of the slowest rank as advised. It is longer if replay, which includes communication, prefers other counts."""


class EstAdvice(StepAdvice, frozen=True, kw_only=True):
    """Advised assignment of one elastic job's ESTs."""

    schema: Literal["esprof.advice/1"] = "esprof.advice/1"
    objective: Literal["step-time"] = "step-time"
    decision: EstDecision
    waste_pct: float
    """Share of the devices' capacity that is idle as advised (EasyScale's waste)."""
    certificate: CountCertificate
    growth: Growth | None
    """Gain from other devices; None without an inventory."""
    plan: Plan | None
    """None if the gain is less than twice the error."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...] = (
        "a link or a host that other jobs use at times",
        "memory of the host's caches that ESTs on one rank share",
    )
