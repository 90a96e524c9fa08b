"""The JSON document of `esprof validate`."""

from typing import Literal

import msgspec

from esprof.analyzers.views.unrecorded import Unrecorded
from esprof.core.step_words import Unit
from esprof.core.types import Rank
from esprof.replay.answer import HostClockAnswer
from esprof.run.run import RunWarning, Window

PartState = Literal["present", "absent", "broken"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One table of one rank, or its flight log."""

    state: PartState
    rows: int = 0
    """Rows of a table; 0 for a flight log."""
    reason: str | None = None
    """Why it is broken."""


class RankParts(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded of one rank."""

    rank: Rank
    host: str | None
    device: str | None
    parts: dict[str, Part]
    """By name: the tables of `esprof.run.schema`, and `flight`."""
    windows: tuple[Window, ...]
    windows_lost: int
    dropped_events: int
    dropped_steps: int
    ended: bool
    """Whether its process ended normally, as far as known."""


class DeclinedTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What-if terms that are declined on this run for one reason."""

    terms: tuple[str, ...]
    reason: str


class ReplayTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run can be replayed, and how well."""

    answered: bool
    reason: str | None = None
    """Why it cannot."""
    steps: tuple[int, ...] = ()
    """The steady-state steps that are replayed."""
    error_pct: float | None = None
    """Mean error of the prediction of held-out steps, or of the replay without residuals, if that is larger."""
    explained_pct: float | None = None


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof validate --json`."""

    schema: str = "esprof.validate/1"
    whole: bool
    """Whether no rank is missing, and nothing that was recorded is broken."""
    source: str
    unit: Unit
    world_size: int
    missing_ranks: tuple[Rank, ...]
    ranks: tuple[RankParts, ...]
    faults: tuple[RunWarning, ...]
    """What is broken or missing."""
    unrecorded: tuple[Unrecorded, ...]
    replay: ReplayTrial
    answered: tuple[str, ...]
    """An example of each what-if term that is answered."""
    declined: tuple[DeclinedTerms, ...]
    clocks: tuple[HostClockAnswer, ...]
    warnings: tuple[RunWarning, ...]
    """Everything else that was noticed."""
