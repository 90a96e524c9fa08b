"""The graph of each rank by itself: what one rank needs of the others are the numbers of its collectives, how long each took
after its wait, and the clocks. All of that comes from the collective calls of the ranks."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from esprof.core.types import Rank
from esprof.replay.building.assemble import assemble
from esprof.replay.building.build import MatchedCollectives, check_operations, events_of
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.rank_graph import rank_graph
from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.rules import ALL_RULES, Rules
from esprof.replay.steps import RecordedSteps


@dataclass(frozen=True)
class RanksAlone:
    """Builds the graph of any rank of a run, as often as it is asked for. It holds the events of one rank at a time."""

    steps: RecordedSteps
    matched: MatchedCollectives
    rules: Rules

    @classmethod
    def of(cls, steps: RecordedSteps, rules: Rules = ALL_RULES) -> "RanksAlone":
        """Read the ranks one by one, and match their collectives."""
        events = (events_of(steps, rank) for rank in steps.run.ranks)
        return cls(steps, MatchedCollectives.of(steps, events, rules), rules)

    def build(self, rank: Rank) -> tuple[Dfg, BuildCounts]:
        """(graph of `rank` with the joins of its collectives, whose other members it lacks; counts of its construction).

        Residuals are those of a rank that waits for nobody. Raises InputError if it recorded no CPU operation.
        """
        run, rendezvous = self.steps.run, self.matched.rendezvous
        events = events_of(self.steps, rank)
        check_operations(run, events)
        graph = rank_graph(events, rendezvous.by_rank[run.ranks.index(rank)], self.rules)
        return assemble([graph], rendezvous, self.steps.all)


def with_gpu_ends(dfg: Dfg) -> Dfg:
    """The graph with a node for each step at the end of all GPU work launched in it, on a lane of a stream. They follow all
    other nodes; `StepEnds.gpu_progress_ns` needs only them."""
    work = np.flatnonzero(dfg.on(LaneKind.STREAM) & np.isin(dfg.step, dfg.marks.steps))
    if not len(work):
        return dfg
    work = work[np.argsort(dfg.step[work], kind="stable")]
    _, first, count = np.unique(dfg.step[work], return_index=True, return_counts=True)
    # A new node is on the lane, and of the step, of the first of its nodes; it starts when the last of them was recorded to.
    columns: dict[str, Any] = {
        field.name: np.append(values, values[work[first]])
        for field in fields(dfg)
        if field.init and isinstance(values := getattr(dfg, field.name), np.ndarray) and len(values) == dfg.nodes
    }
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
    return replace(dfg, **(columns | edges))
