"""CPU starvation found by traces alone: all ranks stall repeatedly, each at other positions."""

import numpy as np

from esprof.core.types import NS_PER_MS, Ns
from esprof.replay.dfg import Cls
from esprof.replay.ranks.blame import Blame

MIN_STALL_NS: Ns = NS_PER_MS
"""Least time, ns, that a stall takes beyond what the same work takes on the other ranks: a time slice of the scheduler takes
as long, or longer."""

MIN_STALL_RATIO = 10
"""Ratio of a stall to the same work on other ranks, which slower ranks or ranks with more work do not reach."""

MIN_RANKS = 3
"""With two ranks it is unknown which one is normal."""

MIN_STALLED_SHARE = 0.1
"""Least share of its steps that each rank must stall for: a pause on some ranks has a cause of its own."""

MIN_STALLS_PER_STEP = 5
"""Least number of stalls of a mean step of each rank."""

MIN_STALL_NAMES = 3
"""Least number of names of the operations and gaps in which each rank stalls: one name alone would be the job itself."""


def starved_ns(blame: Blame) -> np.ndarray | None:
    """Stall time of each node on its rank's main thread, ns, int64[N]; None where not all ranks are starved."""
    dfg, steps = blame.dfg, blame.steps
    ranks = dfg.marks.ranks
    if len(ranks) < MIN_RANKS:
        return None
    main = np.isin(dfg.lane, [dfg.main_lane(rank) for rank in ranks])
    mine = main & dfg.of(Cls.CPU, Cls.COMPUTE, Cls.HOST_GAP, Cls.LAUNCH)
    is_stall = mine & blame.peers.own & (blame.excess_ns > MIN_STALL_NS)
    is_stall &= blame.work_ns >= MIN_STALL_RATIO * blame.usual_ns
    stalls: np.ndarray = np.where(is_stall, np.rint(blame.excess_ns), 0).astype(np.int64)
    least_ns = MIN_STALLED_SHARE * blame.step_ns * len(steps)
    for rank in ranks:
        here = np.flatnonzero(is_stall & (dfg.rank == rank) & np.isin(dfg.step, steps))
        few = len(here) < MIN_STALLS_PER_STEP * len(steps) or len(np.unique(dfg.name[here])) < MIN_STALL_NAMES
        if few or stalls[here].sum() < least_ns:
            return None
    return stalls
