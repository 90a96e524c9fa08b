"""Sets of changes with which a job fits into less memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile

from esprof.analyzers.advisors.search.branch import KnownSteps, SearchTerm, TermSet
from esprof.core.errors import EsprofError
from esprof.core.readable import size
from esprof.core.types import Bytes
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.memory.answer import JobMemory
from esprof.replay.whatif.memory.peak import PeakMemory
from esprof.replay.whatif.scenario import Declined

LESS_MEMORY = ("recompute=full", "accumulate=2", "accumulate=4", "zero=1", "zero=2", "zero=3")
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

    def start(self, terms: Sequence[SearchTerm], steps: KnownSteps) -> TermSet:
        """A set that fits and has a price: none of the values, or else one of those with the least peak. Raises EsprofError
        if there is none."""
        if self.allows(()):
            return ()
        choices = product(*((None, *term.values) for term in terms if term.needed))
        sets = [tuple(value for value in one if value is not None) for one in choices]
        sets.sort(key=lambda one: self.peak(one).peak)
        fitting = list(takewhile(self.allows, sets))
        for one in fitting:
            if steps.of(one) is not None:
                return one
        lowest = sets[0]
        tried = f" with {', '.join(lowest)}" if lowest else ""
        found = f"a rank needs {size(self.peak(lowest).peak)}{tried}"
        if fitting:
            raise EsprofError(f"{found}, but the step of no set that fits into {size(self.most)} is known")
        raise EsprofError(f"{found}, more than {size(self.most)}")
