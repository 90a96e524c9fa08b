"""The graph of each rank by itself: what one rank needs of the others are the numbers of its collectives, how long each took
after its wait, and the clocks. All of that comes from the collective calls of the ranks.

A rank is described by values that travel to another process: the name of its run, and what other ranks tell of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.building.assemble import assemble
from esprof.replay.building.build import MatchedCollectives, check_operations, events_in
from esprof.replay.building.collectives.matching import CallsOfRank
from esprof.replay.building.collectives.rendezvous import RankRendezvous
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.rank_graph import RankGraph, rank_graph
from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.over_ranks import IN_THIS_PROCESS, RankWorkers
from esprof.replay.rules import ALL_RULES, Rules
from esprof.replay.run_by_name import RunByName
from esprof.replay.skeleton.kept_graphs import GraphFile, KeptGraphs
from esprof.replay.steps import RecordedSteps
from esprof.run.clocks.by_collectives import Clocks


@dataclass(frozen=True)
class RankInSteps:
    """A rank of a run, and the steps that its graph covers."""

    source: RunByName
    rank: Rank
    boundaries: Mapping[int, tuple[Ns, Ns]]
    """(start, end) of each step, ns on the rank's own clock."""
    steps: tuple[int, ...]

    def events(self) -> RankEvents:
        return events_in(self.source.run, self.rank, self.boundaries, self.steps)

    def calls(self) -> CallsOfRank:
        return CallsOfRank.of(self.events())


@dataclass(frozen=True)
class RankAlone:
    """Builds the graph of one rank, as often as it is asked for."""

    recorded: RankInSteps
    rendezvous: RankRendezvous
    clocks: Clocks
    """The clock of this rank."""
    collectives: np.ndarray
    """Numbers of its matched collectives, ascending, int64[C]."""
    arrival_ns: np.ndarray
    """`Rendezvous.arrival_ns` of each, int64[C]."""
    rules: Rules
    kept: GraphFile | None
    """Where its graph is kept."""

    def build(self) -> tuple[Dfg, BuildCounts]:
        """(graph of the rank with the joins of its collectives, whose other members it lacks; counts of its construction).

        Residuals are those of a rank that waits for nobody. Raises InputError if it recorded no CPU operation.
        """
        arrival_ns = by_number(self.collectives, self.arrival_ns)
        built = assemble([self.graph()], self.clocks, arrival_ns, self.recorded.steps)
        if self.kept is not None:
            self.kept.write(built[0])
        return built

    def dfg(self) -> Dfg:
        """The graph that `build` makes, or made before."""
        kept = None if self.kept is None else self.kept.read()
        return self.build()[0] if kept is None else kept

    def graph(self) -> RankGraph:
        """The graph of the rank, on its own clock and without joins. Raises as `build` does."""
        events = self.recorded.events()
        check_operations(self.recorded.source.run, events)
        return rank_graph(events, self.rendezvous, self.rules)


@dataclass(frozen=True)
class RanksAlone:
    """The ranks of a run, each to be built alone."""

    steps: RecordedSteps
    matched: MatchedCollectives
    rules: Rules
    kept: KeptGraphs

    @classmethod
    def of(cls, steps: RecordedSteps, rules: Rules = ALL_RULES, workers: RankWorkers = IN_THIS_PROCESS) -> "RanksAlone":
        """Read the ranks one by one, and match their collectives. Raises RanksLost."""
        source = RunByName(steps.run)
        tasks = ((rank, RankInSteps(source, rank, steps.boundaries[rank], steps.all)) for rank in steps.run.ranks)
        calls = workers.over("Reading collectives", RankInSteps.calls, tasks)
        kept = KeptGraphs(sum(steps.run.rank(rank).events for rank in steps.run.ranks))
        return cls(steps, MatchedCollectives.of(steps, calls, rules), rules, kept)

    def rank(self, rank: Rank) -> RankAlone:
        rendezvous, mine = self.matched.rendezvous, self.matched.rendezvous.by_rank[self._at[rank]]
        numbers = np.unique(mine.number[mine.number >= 0])
        return RankAlone(
            recorded=RankInSteps(RunByName(self.steps.run), rank, self.steps.boundaries[rank], self.steps.all),
            rendezvous=mine,
            clocks=rendezvous.clocks.of_rank(rank),
            collectives=numbers,
            arrival_ns=rendezvous.arrival_ns[numbers],
            rules=self.rules,
            kept=self.kept.of(rank),
        )

    def build(self, ranks: Iterable[Rank]) -> tuple[Dfg, BuildCounts]:
        """`RankAlone.build` of several ranks together."""
        graphs = [self.rank(rank).graph() for rank in ranks]
        rendezvous = self.matched.rendezvous
        return assemble(graphs, rendezvous.clocks, rendezvous.arrival_ns, self.steps.all)

    @cached_property
    def _at(self) -> dict[Rank, int]:
        return {rank: at for at, rank in enumerate(self.steps.run.ranks)}


def by_number(numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
    """An array with each of the `values` at the index that its number gives; 0 elsewhere."""
    found = np.zeros(int(numbers.max(initial=-1)) + 1, values.dtype)
    found[numbers] = values
    return found


def with_gpu_ends(dfg: Dfg) -> Dfg:
    """The graph with a node for each step at the end of all GPU work launched in it, on a lane of a stream. They follow all
    other nodes; `Timeline.gpu_progress_ns` needs only them."""
    return with_ends(dfg, dfg.on(LaneKind.STREAM))[0]


def with_times(ends: Dfg, dur_ns: np.ndarray, residual_ns: np.ndarray) -> Dfg:
    """The graph that `with_ends` made of one with N nodes, if these take so long, int64[N]."""
    none = np.zeros(ends.nodes - len(dur_ns), np.int64)
    return replace(ends, dur_ns=np.append(dur_ns, none), residual_ns=np.append(residual_ns, none))


def with_ends(dfg: Dfg, mask: np.ndarray) -> tuple[Dfg, np.ndarray]:
    """(the graph with a node for each step, behind all others, at the end of the nodes of `mask` launched in it; the steps
    that have such nodes, ascending)."""
    work = np.flatnonzero(mask & np.isin(dfg.step, dfg.marks.steps))
    if not len(work):
        return dfg, np.zeros(0, np.int64)
    work = work[np.argsort(dfg.step[work], kind="stable")]
    steps, first, count = np.unique(dfg.step[work], return_index=True, return_counts=True)
    # A new node is on the lane, and of the step, of the first of its nodes; it starts when the last of them was recorded to.
    columns: dict[str, Any] = {name: np.append(values, values[work[first]]) for name, values in dfg.columns.items()}
    new = slice(dfg.nodes, None)
    columns["name"][new] = dfg.name[dfg.marks.first[0, 0]]
    columns["recorded_ns"][new] = np.maximum.reduceat((dfg.recorded_ns + dfg.dur_ns)[work], first)
    for name, value in (("dur_ns", 0), ("residual_ns", 0), ("contended", 0), ("cls", Cls.WAIT), ("collective", -1)):
        columns[name][new] = value
    edges = {
        "pred_ptr": np.append(dfg.pred_ptr, dfg.edges + np.cumsum(count)).astype(dfg.pred_ptr.dtype),
        "pred_idx": np.append(dfg.pred_idx, work).astype(dfg.pred_idx.dtype),
        "pred_lag": np.append(dfg.pred_lag, np.zeros_like(work)).astype(dfg.pred_lag.dtype),
        "pred_kind": np.append(dfg.pred_kind, np.full_like(work, Edge.LANE)).astype(dfg.pred_kind.dtype),
    }
    return replace(dfg, **(columns | edges)), steps
