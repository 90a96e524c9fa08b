"""Ranks that are starved of CPU, told by their traces alone: all stall again and again, each at other places."""

import numpy as np

from esprof.core.types import NS_PER_MS, Ns
from esprof.replay.dfg import Cls
from esprof.replay.ranks.blame import Blame

MIN_STALL_NS: Ns = NS_PER_MS
"""Least time, ns, that a stall takes beyond what the same work takes on the other ranks: a time slice of the scheduler takes
as long, or longer."""

MIN_STALL_RATIO = 10
"""A stall takes so many times as long as the same work on the other ranks. Ranks with more to do, or slower ones, do not."""

MIN_RANKS = 3
"""Of two, nothing tells which one is as usual."""

MIN_STALLED_SHARE = 0.1
"""Least share of its steps that each rank must stall for: a pause on some ranks has a cause of its own."""

MIN_STALLS_PER_STEP = 5
"""Least number of stalls of a mean step of each rank."""

MIN_STALL_PLACES = 3
"""Least number of names of the operations and gaps in which each rank stalls: at one place it would be the job itself."""


def starved_ns(blame: Blame) -> np.ndarray | None:
    """By how much each node is a stall of its rank's main thread, ns, int64[N]; None where not all ranks are starved."""
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
        few = len(here) < MIN_STALLS_PER_STEP * len(steps) or len(np.unique(dfg.name[here])) < MIN_STALL_PLACES
        if few or stalls[here].sum() < least_ns:
            return None
    return stalls
