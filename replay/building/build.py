"""From a Run to its Dfg: read the ranks, match collectives, align clocks, build each rank's graph, connect the ranks."""

from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from esprof.core.errors import InputError
from esprof.core.types import Rank
from esprof.replay.building.assemble import assemble
from esprof.replay.building.collectives.matching import CollectiveCalls, calls_of, is_partial, match
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


def build(
    run: Run, steps: RecordedSteps | None = None, executor: Executor | None = None, rules: Rules = ALL_RULES
) -> Dfg:
    """The global dataflow graph of `run` over its recorded steps (by default `steps_of(run)`).

    An executor, of threads or processes, builds ranks in parallel. Raises InputError where the ranks have no
    recorded step in common, where none of them recorded a CPU operation, and where the recorded dependencies form a cycle.
    """
    return build_counted(run, steps, executor, rules).dfg


@dataclass(frozen=True)
class MatchedRanks:
    """The events of all ranks, and their collectives as matched across ranks."""

    events: list[RankEvents]
    calls: CollectiveCalls
    number: np.ndarray
    """Number of the collective of each of `calls`; -1 where it was not matched."""
    rendezvous: Rendezvous


def matched_ranks(steps: RecordedSteps, rules: Rules = ALL_RULES) -> MatchedRanks:
    """Read the ranks and match their collectives."""
    run = steps.run
    recorded = [read_rank(run, rank, steps.boundaries[rank], steps.all) for rank in run.ranks]
    events = [with_cut_work(with_graph_work(one)) for one in recorded]
    calls = calls_of(run, events, steps.lost_by)
    number = match(calls)
    if not rules.rendezvous:
        number, calls = np.full(len(number), -1), replace(calls, members=np.ones_like(calls.members))
    return MatchedRanks(events, calls, number, find_rendezvous(run, calls, number))


def build_counted(
    run: Run, steps: RecordedSteps | None = None, executor: Executor | None = None, rules: Rules = ALL_RULES
) -> Built:
    """`build`, with counts, clocks and communication times. Raises InputError as `build` does."""
    steps = steps or steps_of(run)
    run, matched = steps.run, matched_ranks(steps, rules)
    calls, number, rendezvous = matched.calls, matched.number, matched.rendezvous
    for events in matched.events:
        if not events.threads.roles:
            remedy = (
                "Record with ProfilerActivity.CPU. Without it, `esprof diagnose` and `esprof ops` use the GPU's events."
            )
            raise InputError(f"rank {events.rank} holds no CPU operation in these steps", path=run.path, remedy=remedy)
    build_rank = partial(rank_graph, rules=rules)
    graphs = list((executor.map if executor else map)(build_rank, matched.events, rendezvous.by_rank))
    dfg, counts = assemble(graphs, rendezvous, steps.all)
    alone = calls.rank[(number < 0) & (calls.members != 1)]
    unmatched = dict(zip(run.ranks, np.bincount(alone, minlength=len(run.ranks)).tolist(), strict=True))
    return Built(
        dfg, _coverage(calls, number, rendezvous) + counts, unmatched, rendezvous.clocks, rendezvous.communication
    )


def _coverage(calls: CollectiveCalls, number: np.ndarray, rendezvous: Rendezvous) -> BuildCounts:
    """Number of collective calls, and of matched ones (`number` is 0 or more)."""
    return BuildCounts(
        collectives=int((~calls.is_p2p).sum()),
        p2p=int(calls.is_p2p.sum()),
        # A group of one rank needs no match.
        collectives_matched=int((~calls.is_p2p & ((number >= 0) | (calls.members == 1))).sum()),
        collectives_partial=int((~calls.is_p2p & is_partial(calls, number)).sum()),
        p2p_matched=int((calls.is_p2p & (number >= 0)).sum()),
        collectives_ended_early=rendezvous.early,
    )
