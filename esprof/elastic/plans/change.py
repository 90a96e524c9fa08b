"""What a plan changes of a running job, and what that depends on."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from esprof.core.assignment import Assignment
from esprof.elastic.compress.ests import Guarded
from esprof.elastic.plans.signature import model_signature
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.verify.fingerprint import Level

Ests = tuple[tuple[int, ...], ...]
CheckWorld = Callable[[int, int], None]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks change together."""

    plan: str
    version: int
    at_step: int
    ests: Ests | None
    """Those of each rank; None where they stay."""
    codec: str | None
    """None where it stays."""
    guard: Guarded | None = None
    """Of that codec."""
    window: int = 1
    blocks: int = 0
    """It is tried first, so many times for so many steps; 0 for no trial."""
    world: int | None = None
    """Processes that the job is to go on with; None for as many as now. Nothing else changes before that."""
    settles: bool = False
    """Whether this takes back what the plan has changed, or keeps for good what was tried."""
    goes_back: bool = False
    """Which of the two."""


@dataclass(frozen=True)
class Fits:
    """What a plan has to fit: the same for the whole life of a trainer."""

    n_est: int
    level: Level
    scaled: bool
    """Whether the loss is scaled, as fp16's is."""
    model_signature: str
    gradient_bytes: int
    """Of all parameters."""
    check_world: CheckWorld
    """Raises UsageError where a job cannot become one of so many processes, from so many."""

    @classmethod
    def of(cls, state: TrainingState, layout: Layout, n_est: int, level: Level, check_world: CheckWorld) -> "Fits":
        """What has to be fitted for a job of this state."""
        return cls(
            n_est,
            level,
            state.scaler.is_enabled(),
            model_signature(state.model),
            layout.numel * layout.dtype.itemsize,
            check_world,
        )


@dataclass(frozen=True)
class Now:
    """What holds at a border between steps."""

    step: int
    """The one to come."""
    assignment: Assignment
    codec: str
    guard: Guarded | None
    """Of that codec, where a plan has brought it."""
    context_bytes: int
    """Of the largest EST context that this rank has."""
