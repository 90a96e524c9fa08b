"""GPU streams on which collectives of several kinds are queued, like the stream of one process group."""

import numpy as np

from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.engine.timeline import Timeline
from esprof.run.collective_names import collective_word


def kinds_in_queues(dfg: Dfg) -> np.ndarray:
    """Kind of each node's matched collective among the kinds on its stream, int64[N]; 0 for the first kind of a stream, and
    for all other nodes."""
    found = np.zeros(dfg.nodes, np.int64)
    collectives = np.flatnonzero(dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0))
    words = {name: collective_word(name) or name for name in dfg.names}
    number = {word: at for at, word in enumerate(dict.fromkeys(words.values()))}
    of_name = np.array([number[words[name]] for name in dfg.names])
    # `members` are the arrivals and communication nodes of the collectives.
    of_collective = np.full(int(dfg.collective.max(initial=-1)) + 2, -1)
    of_collective[dfg.collective[collectives]] = of_name[dfg.name[collectives]]
    kind = of_collective[dfg.collective]
    members = np.flatnonzero(dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMMUNICATION, Cls.WAIT) & (kind >= 0))
    for lane in np.unique(dfg.lane[collectives]).tolist():
        mine = members[dfg.lane[members] == lane]
        found[mine] = np.unique(kind[mine], return_inverse=True)[1]
    return found


def queued(timeline: Timeline, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(time that each collective waited on its stream only for one of another kind, ns; the node that it waited for, -1 for
    none), each int64[N]. `kinds` is the result of `kinds_in_queues`."""
    dfg = timeline.dfg
    source, target, is_lane = dfg.pred_idx, dfg.pred_target, dfg.pred_kind == Edge.LANE
    arrivals = dfg.of(Cls.WAIT) & (dfg.collective >= 0) & dfg.on(LaneKind.STREAM)
    begin = timeline.end_ns[source] + dfg.pred_lag
    behind = is_lane & arrivals[target] & (kinds[target] != kinds[source])
    free, ready, before = np.zeros(dfg.nodes, np.int64), np.zeros(dfg.nodes, np.int64), np.full(dfg.nodes, -1)
    free[target[behind]], before[target[behind]] = begin[behind], source[behind]
    np.maximum.at(ready, target[~is_lane], begin[~is_lane])
    waited: np.ndarray = np.where(before >= 0, np.maximum(free - ready, 0), 0)
    return waited, before
