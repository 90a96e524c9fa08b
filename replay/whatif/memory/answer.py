"""Peak memory of a job's ranks, as recorded and in scenarios."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from esprof.core.types import Rank
from esprof.replay.answer import WhatIf
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.memory.blocks import RankBlocks, rank_blocks
from esprof.replay.whatif.memory.peak import PeakMemory, peak_memory
from esprof.replay.whatif.scenario import Declined, known_ranks, ranks_with
from esprof.replay.whatif.term import Term
from esprof.run.run import Run


@dataclass(frozen=True)
class JobMemory:
    """The memory of the ranks of a run in its recorded steps."""

    run: Run
    steps: Sequence[int]
    _known: dict[Rank, RankBlocks] = field(default_factory=dict, repr=False)

    @cached_property
    def peaks(self) -> tuple[PeakMemory, ...]:
        """The recorded peak of each rank whose allocations were recorded."""
        found = []
        for rank in self.run.ranks:
            try:
                found.append(self._peak(self._of(rank)))
            except Declined:
                continue
        return tuple(found)

    def peak(self, terms: Sequence[Term]) -> PeakMemory | None:
        """The peak of the rank with the least room after these terms; None if they do not change memory. Raises Declined
        if it is unknown."""
        if all(term.kind.memory is None for term in terms):
            return None
        return min(
            self.peaks_with(terms), key=lambda one: (one.limit - one.peak if one.limit is not None else 0, -one.peak)
        )

    def peaks_with(self, terms: Sequence[Term]) -> tuple[PeakMemory, ...]:
        """The peak of each rank after these terms. Raises Declined if one is unknown."""
        changing = [term for term in terms if term.kind.memory is not None]
        return tuple(self._peak(self._changed(rank, changing)) for rank in self.run.ranks)

    def _changed(self, rank: Rank, terms: Sequence[Term]) -> RankBlocks:
        memory = self._of(rank)
        # What is kept changes first, then the time at which it is there.
        for term in sorted(terms, key=lambda term: -term.kind.phase):
            if rank in self._ranks(term) and term.kind.memory is not None:
                memory = term.kind.memory(self.run, memory, term)
        return memory

    def _ranks(self, term: Term) -> Sequence[Rank]:
        if term.only:
            return known_ranks(self.run, term.only)
        return self.run.ranks if term.device is None else ranks_with(self.run, term.device)

    def _of(self, rank: Rank) -> RankBlocks:
        if rank not in self._known:
            self._known[rank] = rank_blocks(self.run, rank, tuple(self.steps))
        return self._known[rank]

    def _peak(self, memory: RankBlocks) -> PeakMemory:
        return peak_memory(memory, self.run.rank(memory.rank).memory_limit)


def with_peak(scenario: WhatIf, memory: JobMemory) -> WhatIf:
    """The scenario with its peak memory, if a term changes that."""
    try:
        return msgspec.structs.replace(scenario, peak=memory.peak(parse(scenario.spec)))
    except Declined as reason:
        return msgspec.structs.replace(scenario, peak_reason=str(reason))
