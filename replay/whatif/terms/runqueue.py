"""`runqueue=0`: training threads that never wait for a CPU."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import LaneKind
from esprof.replay.whatif import edits
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, zero
from esprof.replay.whatif.work import HOST_WORK


def _never_waiting(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    dfg = now.dfg
    dur = dfg.dur_ns.copy()
    for rank in {rank for term in terms for rank in term.ranks(now)}.intersection(dfg.marks.ranks):
        lane = int(dfg.lane[dfg.marks.first[0, dfg.marks.ranks.index(rank)]])  # Steps begin and end on the main thread.
        mine = (dfg.lane == lane) & dfg.on(LaneKind.CPU) & dfg.of(*HOST_WORK)
        steps = now.run.steps(rank)
        told = steps.ints("ready_ns") >= 0
        if not (told & np.isin(steps.ints("step"), dfg.marks.steps)).any():
            raise Declined(f"how long rank {rank} waited for a CPU was not recorded")
        for step, ready in zip(steps.ints("step")[told].tolist(), steps.ints("ready_ns")[told].tolist(), strict=True):
            nodes = np.flatnonzero(mine & (dfg.step == step))
            work = int(dfg.dur_ns[nodes].sum())
            if work:
                dur[nodes] = np.rint(dfg.dur_ns[nodes] * (1 - min(ready, work) / work))
    return replace(now, dfg=edits.replace(dfg, np.arange(dfg.nodes), dur))


TERM = Kind(
    name="runqueue",
    examples=("runqueue=0", "rank3.runqueue=0"),
    meaning="Training threads always have a CPU: what each waited for one in a step, as the kernel counts it, is taken "
    "from its work there in equal shares.",
    needs="Steps of which it was recorded how long the training thread waited for a CPU.",
    effect=Edit(Phase.REMOVE, _never_waiting),
    value=zero,
    scoped=True,
)
