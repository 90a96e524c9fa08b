"""The best set of changes of one job, as types."""

from typing import Literal

import msgspec

from esprof.analyzers.advisors.search.changes import Revert
from esprof.analyzers.advisors.step_advice import StepAdvice
from esprof.core.plan import Plan
from esprof.core.types import Bytes
from esprof.replay.whatif.memory.peak import PeakMemory

NOW, ALL_IDEAL = "now", "all terms ideal"


class ChosenChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the best set. Its gains do not add up to that of the set."""

    change: str
    """A what-if term."""
    alone_us: float | None
    """Gain of this change alone; None if it has no price."""
    given_others_us: float | None
    """By how much longer a step of the set would take without this change; None if that has no price."""
    step_after_us: float | None
    """Predicted step with this change and all before it; None if that has no price."""
    revert: Revert
    """What it takes to undo it."""


class SearchedTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A term, the values that were tried, and what its ideal would gain."""

    term: str
    values: tuple[str, ...]
    ideal: tuple[str, ...] | None
    """Terms with the same ideal have it together. Empty for a term that only costs time; None if no bound is known."""
    ideal_alone_us: float | None
    ideal_given_others_us: float | None
    """If all other terms are ideal; None if that has no price."""
    searched: bool
    """False if the ideal gains less than `least_gain_us`, alone and given the others."""
    masked: bool
    """Whether the ideal gains enough only if other terms are better: another bottleneck hides it now."""


class SearchAdvice(StepAdvice, frozen=True, kw_only=True):
    """The set of changes that makes a step shortest, the fewest that are needed for it.

    The baseline `all terms ideal` is the bound before the search; it is not there if a term has no known bound.
    """

    schema: Literal["esprof.search/1"] = "esprof.search/1"
    objective: Literal["step"] = "step"
    is_worth_it: bool
    """Whether the gain is at least twice the prediction's error, or the job fits into `max_memory` only with the set."""
    decision: tuple[ChosenChange, ...]
    """In the order in which to apply them: the cheapest to undo first, of equal ones that with the largest gain."""
    what_if: str | None
    """The set as a scenario of `esprof replay --what-if`; None if it is empty."""
    shortest_us: float
    """Step of the best set that was found, before changes were removed that gain less than `least_gain_us`."""
    lower_bound_us: float
    """No set of these values has a shorter step, by replay."""
    gap_pct: float
    """By how much the lower bound is below the advised step, in per cent of that."""
    complete: bool
    """Whether `shortest_us` is the optimum of the searched terms; False if replays ended, or a bound did not hold."""
    replays: int
    max_replays: int
    """Limit of the replays of sets, in addition to those of each ideal and each change alone."""
    least_gain_us: float
    """Gain below which a change counts as none: twice the error of replay on this run, and at least 1 % of a step."""
    max_vnmse: float
    """Largest loss of a codec that was tried without `--try`."""
    max_memory: Bytes | None
    """Most that a rank may need; None without a limit."""
    peak_now: PeakMemory | None
    """Largest peak of all ranks as recorded; None without a limit."""
    peak: PeakMemory | None
    """The largest peak with the set; None without a limit."""
    terms: tuple[SearchedTerm, ...]
    left_out: dict[str, str]
    """Term or value that was not searched -> reason."""
    plan: Plan | None
    """None if no set is worth it, or a plan cannot express any of it."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...] = (
        "memory: of loader workers, their batches and caches, of codecs, and without --max-memory-gb of all changes",
        "the interval of checkpoints and codecs for single buckets: ask for these alone; the assignment of logical "
        "workers and the layers of stages without --try",
        "settings of single ranks: each change applies to all ranks",
    )
