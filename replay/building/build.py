"""From a Run to its Dfg: read the ranks, match collectives, align clocks, build each rank's graph, connect the ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from esprof.core.errors import InputError
from esprof.core.types import Ns, Rank
from esprof.replay.building.assemble import assemble
from esprof.replay.building.collectives.matching import CallsOfRank, CollectiveCalls, calls_of, is_partial, match
from esprof.replay.building.collectives.rendezvous import Rendezvous, find_rendezvous
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.gpu.cut_work import with_cut_work
from esprof.replay.building.gpu.graph_work import with_graph_work
from esprof.replay.building.rank_events import RankEvents, read_rank
from esprof.replay.building.rank_graph import rank_graph
from esprof.replay.dfg import Dfg
from esprof.replay.rules import ALL_RULES, Rules
from esprof.replay.steps import RecordedSteps, steps_of
from esprof.run.clocks.by_collectives import Clocks, CommunicationFit
from esprof.run.run import Run


@dataclass(frozen=True)
class Built:
    """A Dfg with the counts and clocks of its construction."""

    dfg: Dfg
    counts: BuildCounts
    unmatched: dict[Rank, int]
    """Number of calls of each rank that have peers but no match."""
    clocks: Clocks
    communication: CommunicationFit


def build(run: Run, steps: RecordedSteps | None = None, rules: Rules = ALL_RULES) -> Dfg:
    """The global dataflow graph of `run` over its recorded steps (by default `steps_of(run)`).

    Raises InputError where the ranks have no recorded step in common, where none of them recorded a CPU operation, and
    where the recorded dependencies form a cycle.
    """
    return build_counted(run, steps, rules).dfg


@dataclass(frozen=True)
class MatchedCollectives:
    """The collectives of all ranks, as matched across ranks."""

    calls: CollectiveCalls
    number: np.ndarray
    """Number of the collective of each of `calls`; -1 where it was not matched."""
    rendezvous: Rendezvous

    @classmethod
    def of(
        cls, steps: RecordedSteps, calls_of_ranks: Iterable[CallsOfRank], rules: Rules = ALL_RULES
    ) -> "MatchedCollectives":
        """Match the collective calls of the ranks of `steps.run`."""
        calls = calls_of(steps.run, calls_of_ranks, steps.lost_by)
        number = match(calls)
        if not rules.rendezvous:
            number, calls = np.full(len(number), -1), replace(calls, members=np.ones_like(calls.members))
        return cls(calls, number, find_rendezvous(steps.run, calls, number))

    def unmatched(self, ranks: Sequence[Rank]) -> dict[Rank, int]:
        """Number of calls of each of the run's `ranks` that have peers but no match."""
        alone = self.calls.rank[(self.number < 0) & (self.calls.members != 1)]
        return dict(zip(ranks, np.bincount(alone, minlength=len(ranks)).tolist(), strict=True))

    @property
    def coverage(self) -> BuildCounts:
        """Number of collective calls, and of matched ones."""
        calls, number = self.calls, self.number
        return BuildCounts(
            collectives=int((~calls.is_p2p).sum()),
            p2p=int(calls.is_p2p.sum()),
            # A group of one rank needs no match.
            collectives_matched=int((~calls.is_p2p & ((number >= 0) | (calls.members == 1))).sum()),
            collectives_partial=int((~calls.is_p2p & is_partial(calls, number)).sum()),
            p2p_matched=int((calls.is_p2p & (number >= 0)).sum()),
            collectives_ended_early=self.rendezvous.early,
        )


@dataclass(frozen=True)
class MatchedRanks(MatchedCollectives):
    """The events of all ranks, and their collectives."""

    events: list[RankEvents]


def matched_ranks(steps: RecordedSteps, rules: Rules = ALL_RULES) -> MatchedRanks:
    """Read the ranks and match their collectives."""
    events = [events_of(steps, rank) for rank in steps.run.ranks]
    matched = MatchedCollectives.of(steps, map(CallsOfRank.of, events), rules)
    return MatchedRanks(matched.calls, matched.number, matched.rendezvous, events)


def events_of(steps: RecordedSteps, rank: Rank) -> RankEvents:
    """The events of `rank` in these steps, and the work that they imply."""
    return events_in(steps.run, rank, steps.boundaries[rank], steps.all)


def events_in(run: Run, rank: Rank, boundaries: Mapping[int, tuple[Ns, Ns]], steps: Sequence[int]) -> RankEvents:
    """`events_of` the rank; `boundaries` are those of its steps, ns on its own clock."""
    return with_cut_work(with_graph_work(read_rank(run, rank, boundaries, steps)))


def check_operations(run: Run, events: RankEvents) -> None:
    """Raise InputError if the rank of these events recorded no CPU operation."""
    if not events.threads.roles:
        remedy = (
            "Record with ProfilerActivity.CPU. Without it, `esprof diagnose` and `esprof ops` use the GPU's events."
        )
        raise InputError(f"rank {events.rank} holds no CPU operation in these steps", path=run.path, remedy=remedy)


def build_counted(run: Run, steps: RecordedSteps | None = None, rules: Rules = ALL_RULES) -> Built:
    """`build`, with counts, clocks and communication times. Raises InputError as `build` does."""
    steps = steps or steps_of(run)
    run, matched = steps.run, matched_ranks(steps, rules)
    rendezvous = matched.rendezvous
    for events in matched.events:
        check_operations(run, events)
    graphs = list(map(partial(rank_graph, rules=rules), matched.events, rendezvous.by_rank))
    dfg, counts = assemble(graphs, rendezvous.clocks, rendezvous.arrival_ns, steps.all)
    return Built(
        dfg, matched.coverage + counts, matched.unmatched(run.ranks), rendezvous.clocks, rendezvous.communication
    )
