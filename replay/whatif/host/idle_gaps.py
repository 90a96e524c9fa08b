"""Gaps of a main thread in which it did not run: no faster CPU shortens these."""

import numpy as np

from esprof.core.types import NS_PER_MS, Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.graph.selections import HOST_WORK
from esprof.run.run import Run

MIN_SLEEP_GAP_NS = NS_PER_MS
"""A gap without any recorded operation that is longer may be a sleep, or wait for a file or a lock."""


def long_gaps(dfg: Dfg) -> np.ndarray:
    """Mask of the gaps of CPU threads that are longer than MIN_SLEEP_GAP_NS."""
    mask: np.ndarray = dfg.of(Cls.HOST_GAP) & (dfg.dur_ns > MIN_SLEEP_GAP_NS)
    return mask


def asleep(run: Run, dfg: Dfg) -> np.ndarray:
    """The share of each node's time that its thread slept or waited, from 0 to 1, float64[N]; 0 if unknown.

    Known for long gaps on main threads, in steps with a recorded time that the thread ran or was ready to run: if the
    graph contains more work than that, the longest gaps were not work.
    """
    share, is_long = np.zeros(dfg.nodes), long_gaps(dfg)
    works = dfg.on(LaneKind.CPU) & dfg.of(*HOST_WORK)
    for rank in dfg.marks.ranks:
        awake_ns = _awake_ns(run, rank)
        if not awake_ns:
            continue
        mine = dfg.nodes_of(rank)
        mine = mine[works[mine] & (dfg.lane[mine] == dfg.main_lane(rank))]
        for step in dfg.marks.steps:
            if step not in awake_ns:
                continue
            nodes = mine[dfg.step[mine] == step]
            idle = max(0, int(dfg.dur_ns[nodes].sum()) - awake_ns[step])
            gaps = nodes[is_long[nodes]]
            longest_first = gaps[np.argsort(-dfg.dur_ns[gaps], kind="stable")]
            took = dfg.dur_ns[longest_first]
            before = np.cumsum(took) - took
            share[longest_first] = np.clip(idle - before, 0, took) / np.maximum(took, 1)
    return share


def _awake_ns(run: Run, rank: Rank) -> dict[int, int]:
    """Time that the training thread ran or was ready to run, ns, for each step with a record."""
    steps = run.steps(rank)
    ran, ready = steps.ints("cpu_ns"), np.maximum(steps.ints("ready_ns"), 0)
    is_recorded = ran >= 0
    return dict(zip(steps.ints("step")[is_recorded].tolist(), (ran + ready)[is_recorded].tolist(), strict=True))
