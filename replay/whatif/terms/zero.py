"""`zero=1`: states of optimizers that the ranks share."""

import numpy as np

from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.changes import with_sharded_optimizer
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word
from esprof.run.run import Run


def _unknown_time(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    raise Declined("the time of an optimizer whose states are shared is not predicted, only the peak memory")


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    return with_sharded_optimizer(memory, _replicas(run, memory))


def _replicas(run: Run, memory: RankBlocks) -> int:
    """Number of ranks among which gradients are reduced. Raises Declined if that is not known, or if they share gradients
    already."""
    events = run.events(memory.rank)
    kinds, names = events.texts("collective"), events.texts("group")
    calls = np.flatnonzero(events.is_kind("collective")).tolist()
    if any(kinds[row] == "reduce_scatter" for row in calls):
        raise Declined("the ranks share gradients already: they reduce and scatter them")
    groups = {names[row] for row in calls if kinds[row] == "all_reduce"}
    found = [group for group in run.meta.groups if group.name in groups]
    if len(found) != 1:
        raise Declined(f"all-reduces of {len(found)} groups were recorded: it needs those of gradients alone")
    return len(found[0].ranks)


TERM = Kind(
    name="zero",
    examples=("zero=1",),
    meaning="Each rank holds an equal share of the states of the optimizer (ZeRO, stage 1; `ZeroRedundancyOptimizer`). Only "
    "the peak memory is predicted, not the time.",
    needs="All-reduces of gradients in one process group, and recorded allocations (`esprof record --memory`).",
    assumes="All states can be shared equally.",
    effect=Edit(TermPhase.REBUILD, _unknown_time),
    memory=_memory,
    value=word("1"),
)
