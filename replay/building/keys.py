"""Which nodes are counterparts of one another, on other ranks and in other steps."""

from collections.abc import Sequence

import numpy as np

from esprof.replay.building.lookup import numbered, occurrences, pairs
from esprof.replay.dfg import JOIN_LANE, Cls, Lane


def counterparts(nodes: np.ndarray, lanes: Sequence[Lane]) -> np.ndarray:
    """One number (int32) for each lane role, name, neighbour before, and occurrence in the step; -1 for nodes on no lane.

    `nodes` stand lane by lane. Gaps and waits come and go between ranks: as neighbours they tell no operations apart.
    """
    roles = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in lanes))}
    role = np.array([*(roles[lane.role] for lane in lanes), len(roles)])[nodes["lane"]]
    name, at = nodes["name"], np.arange(len(nodes))
    is_neighbour = (nodes["cls"] != Cls.HOST_GAP) & (nodes["cls"] != Cls.WAIT)
    before = np.maximum.accumulate(np.where(is_neighbour, at, -1))
    before = np.append(-1, before[:-1])
    before = np.where((before >= 0) & (nodes["lane"][before] == nodes["lane"]), name[before], -1)
    what, distinct = numbered(pairs(name * (len(roles) + 1) + role, before + 1))
    step = nodes["step"] - nodes["step"].min()
    visit = (nodes["lane"].astype(np.int64) - JOIN_LANE) * (step.max() + 1) + step
    by_visit = np.argsort(visit, kind="stable")
    turn = np.empty(len(nodes), np.int32)
    turn[by_visit], turns = occurrences(what[by_visit], visit[by_visit], len(distinct))
    key = (np.cumsum(turns) - turns)[what] + turn
    return np.where(nodes["lane"] == JOIN_LANE, -1, key).astype(np.int32)
