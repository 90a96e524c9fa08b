"""Sets of changes with which a job fits into less memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from esprof.analyzers.advisors.search.branch import SearchTerm, TermSet
from esprof.core.errors import EsprofError
from esprof.core.readable import size
from esprof.core.types import Bytes
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.memory.answer import JobMemory
from esprof.replay.whatif.memory.peak import PeakMemory
from esprof.replay.whatif.scenario import Declined

LESS_MEMORY = ("recompute=full", "zero=1", "zero=2", "zero=3")
"""Whole terms that lower the peak memory, mostly for a longer step."""


@dataclass(frozen=True)
class PeakLimit:
    """The most memory that a rank may need."""

    memory: JobMemory
    most: Bytes

    @classmethod
    def of(cls, replayed: Replayed, most: Bytes) -> "PeakLimit":
        """Raises EsprofError if the allocations of a rank were not recorded."""
        limit = cls(JobMemory(replayed.run, replayed.steps.all), most)
        if len(limit.memory.peaks) < len(replayed.run.ranks):
            raise EsprofError(
                "the allocations of some ranks were not recorded, so that their peak memory is unknown",
                path=replayed.run.path,
                remedy="Use `esprof record --memory`.",
            )
        return limit

    def peak(self, terms: Iterable[str]) -> PeakMemory:
        """The largest peak of all ranks with these whole terms. Raises Declined if it is unknown."""
        spec = ",".join(terms)
        return max(self.memory.peaks_with(parse(spec) if spec else ()), key=lambda one: one.peak)

    def allows(self, terms: TermSet) -> bool:
        return self.peak(terms).peak <= self.most

    def known(self, terms: Sequence[SearchTerm], left_out: dict[str, str]) -> tuple[SearchTerm, ...]:
        """The terms without values after which the peak is unknown; adds those to `left_out`. Terms that change the peak
        are needed."""
        found = []
        for term in terms:
            values = []
            for value in term.values:
                try:
                    self.peak([value])
                    values.append(value)
                except Declined as reason:
                    left_out[value] = str(reason)
            if values:
                changes = any(one.kind.memory is not None for value in values for one in parse(value))
                found.append(replace(term, values=tuple(values), needed=changes))
        return tuple(found)

    def start(self, terms: Sequence[SearchTerm]) -> TermSet:
        """A set that fits: none of the values, or the one of each term that lowers the peak most. Raises EsprofError if
        that does not fit either."""
        if self.allows(()):
            return ()
        lowest = tuple(min(term.values, key=lambda value: self.peak([value]).peak) for term in terms if term.needed)
        if not self.allows(lowest):
            tried = f" with {', '.join(lowest)}" if lowest else ""
            raise EsprofError(f"a rank needs {size(self.peak(lowest).peak)}{tried}, more than {size(self.most)}")
        return lowest
