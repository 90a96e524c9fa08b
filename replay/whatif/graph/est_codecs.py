"""The gradients of an elastic job's ESTs, encoded by a codec: the graph in which they come to their mean as measured."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.whatif.graph.est_turns import EstTurns, carries_gradients

_ADDS = ("reduce", "stage")
"""Operations of the thread that trains in which gradients are added up."""


def exchanged(turns: EstTurns, took_ns: float) -> Dfg:
    """The graph in which bringing the gradients to their mean takes so long, from when the last rank has ended its turns:
    encoded gradients travel when all of a rank's ESTs have had theirs. What that took so far, it takes no more."""
    dfg = turns.dfg
    dur, residual = dfg.dur_ns.copy(), dfg.residual_ns.copy()
    sends = carries_gradients(dfg)
    dur[sends], residual[sends] = 0, 0
    is_adding = np.array([name in _ADDS for name in dfg.names])[dfg.name] & dfg.on(LaneKind.CPU)
    for rank in dfg.marks.ranks:
        adding = np.flatnonzero(is_adding & (dfg.lane == dfg.main_lane(rank)))
        dur[adding] = 0
        last = {int(dfg.step[node]): int(node) for node in adding[np.argsort(dfg.recorded_ns[adding], kind="stable")]}
        dur[list(last.values())] = round(took_ns)
    return replace(dfg, dur_ns=dur, residual_ns=residual)
