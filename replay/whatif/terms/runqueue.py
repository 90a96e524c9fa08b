"""`runqueue=0`: training threads that never wait for a CPU."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import LaneKind
from esprof.replay.ranks.stalls import starved_ns
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import HOST_WORK
from esprof.replay.whatif.scenario import Declined, GraphPart, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _never_waiting(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    dfg = now.dfg
    ranks = sorted({rank for term in terms for rank in term.ranks(now)}.intersection(dfg.marks.ranks))
    if not any((now.run.steps(rank).ints("ready_ns") >= 0).any() for rank in dfg.marks.ranks):
        if now.part is GraphPart.ONE_RANK:
            raise Declined("the CPU wait of threads was not recorded, and stalls tell it only if the run is smaller")
        return _never_stalling(now, ranks)
    dur = dfg.dur_ns.copy()
    for rank in ranks:
        mine = (dfg.lane == dfg.main_lane(rank)) & dfg.on(LaneKind.CPU) & dfg.of(*HOST_WORK)
        steps = now.run.steps(rank)
        steps = steps.where((steps.ints("ready_ns") >= 0) & np.isin(steps.ints("step"), dfg.marks.steps))
        if not len(steps):
            raise Declined(f"the CPU wait of rank {rank} was not recorded")
        nodes = np.flatnonzero(mine & np.isin(dfg.step, steps.ints("step")))
        at = np.searchsorted(np.array(dfg.marks.steps), dfg.step[nodes])
        work = np.bincount(at, dfg.dur_ns[nodes], len(dfg.marks.steps))
        ready = np.zeros(len(work))
        ready[np.searchsorted(np.array(dfg.marks.steps), steps.ints("step"))] = steps.ints("ready_ns")
        left = 1 - np.minimum(ready, work) / np.maximum(work, 1)
        dur[nodes] = np.rint(dfg.dur_ns[nodes] * left[at])
    return replace(now, dfg=edits.replace(dfg, np.arange(dfg.nodes), dur))


def _never_stalling(now: Scenario, ranks: Sequence[Rank]) -> Scenario:
    """Where the kernel's count was not recorded, stalls that all ranks have again and again tell (`starved_ns`)."""
    stalls = starved_ns(now.blame_now)
    if stalls is None:
        raise Declined("the CPU wait of threads was not recorded, and not all ranks stall repeatedly")
    left = now.dfg.dur_ns - np.where(np.isin(now.dfg.rank, ranks), stalls, 0)
    return replace(now, dfg=edits.replace(now.dfg, np.arange(now.dfg.nodes), left)).noted(
        "assumes that a thread waited for a CPU where the same work takes a tenth of the time on other ranks"
    )


TERM = Kind(
    name="runqueue",
    examples=("runqueue=0", "rank3.runqueue=0"),
    meaning="Training threads never wait for a CPU. The wait that the kernel counted in a step is subtracted evenly "
    "from the thread's work in that step. Without that count, stalls on all ranks are cut to what the same work "
    "takes on others.",
    needs="The CPU wait of training threads in these steps, or repeated stalls on all of three or more ranks.",
    assumes="The wait is spread evenly over the work of a step.",
    effect=Edit(TermPhase.REMOVE, _never_waiting),
    value=zero,
    scoped=True,
)
