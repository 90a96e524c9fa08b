"""Which nodes are counterparts of one another, on other ranks and in other steps."""

from collections.abc import Sequence

import numpy as np

from esprof.replay.building.lookup import numbered, occurrences, pairs
from esprof.replay.dfg import JOIN_LANE, Cls, Lane


def counterparts(nodes: np.ndarray, lanes: Sequence[Lane]) -> np.ndarray:
    """`Dfg.key`, int32[N]: a number for each lane role, name, neighbour before, and occurrence in the step; -1 on no lane.

    `nodes` stand lane by lane. Gaps and waits come and go between ranks: they count as no neighbours.
    """
    roles = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in lanes))}
    # The last entry is that of JOIN_LANE, which is -1.
    role = np.array([*(roles[lane.role] for lane in lanes), len(roles)])[nodes["lane"]]
    name, at = nodes["name"], np.arange(len(nodes))
    is_neighbour = (nodes["cls"] != Cls.HOST_GAP) & (nodes["cls"] != Cls.WAIT)
    # The running maximum is the last neighbour up to each node; moved on by one, the last before it. Then its name, if it
    # is on the same lane.
    before = np.maximum.accumulate(np.where(is_neighbour, at, -1))
    before = np.append(-1, before[:-1])
    before = np.where((before >= 0) & (nodes["lane"][before] == nodes["lane"]), name[before], -1)
    what, distinct = numbered(pairs(name * (len(roles) + 1) + role, before + 1))
    # Occurrences are counted within one lane and step: `visit` is a number for each such pair. They are counted in order of
    # visits, and put back where the nodes stand.
    step = nodes["step"] - nodes["step"].min()
    visit = (nodes["lane"].astype(np.int64) - JOIN_LANE) * (step.max() + 1) + step
    by_visit = np.argsort(visit, kind="stable")
    turn = np.empty(len(nodes), np.int32)
    turn[by_visit], turns = occurrences(what[by_visit], visit[by_visit], len(distinct))
    # Each `what` has as many keys as it occurs in one visit at most, behind those of all before it.
    key = (np.cumsum(turns) - turns)[what] + turn
    return np.where(nodes["lane"] == JOIN_LANE, -1, key).astype(np.int32)
