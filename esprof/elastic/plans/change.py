"""The changes of a plan to a running job, and the checks before them."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from esprof.core.assignment import Assignment
from esprof.core.plan import LoaderBody
from esprof.elastic.compress.ests import Guarded
from esprof.elastic.plans.signature import model_signature
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.verify.fingerprint import Level

Ests = tuple[tuple[int, ...], ...]
CheckWorld = Callable[[int, int], None]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change that all ranks apply together."""

    plan: str
    version: int
    at_step: int
    ests: Ests | None
    """ESTs of each rank; None if unchanged."""
    codec: str | None
    """None if unchanged."""
    guard: Guarded | None = None
    """The plan of that codec, and the settings of its guard."""
    loader: LoaderBody | None = None
    """How each rank makes its batches; None if unchanged."""
    every: int | None = None
    """Steps between checkpoints; None if unchanged."""
    window: int = 1
    blocks: int = 0
    """Number of trial blocks of `window` steps; 0 for no trial."""
    world: int | None = None
    """New number of processes; None if unchanged. The job restarts with it before anything else changes."""
    settles: bool = False
    """Whether this ends the judgement of a plan: it is reverted or accepted."""
    goes_back: bool = False
    """Whether the plan is reverted."""


@dataclass(frozen=True)
class Fits:
    """Properties of the job that a plan must fit; constant during the life of a trainer."""

    n_est: int
    level: Level
    scaled: bool
    """Whether the loss is scaled, as fp16's is."""
    model_signature: str
    gradient_bytes: int
    """Bytes of the gradients of all parameters."""
    check_world: CheckWorld
    """(wanted, present number of processes). Raises UsageError if the job cannot change it."""

    @classmethod
    def of(cls, state: TrainingState, layout: Layout, n_est: int, level: Level, check_world: CheckWorld) -> "Fits":
        """The properties of a job in this state."""
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
    """The state of the job at a step boundary."""

    step: int
    """The next step."""
    assignment: Assignment
    codec: str
    guard: Guarded | None
    """Guard of that codec, if a plan has set it."""
    loader: LoaderBody | None
    """None if the script's own loaders make the batches."""
    context_bytes: int
    """Size of the largest EST context on this rank."""
    every: int | None = None
    """Steps between checkpoints; None if a plan cannot change them."""
