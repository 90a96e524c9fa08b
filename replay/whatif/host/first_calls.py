"""First calls of kernels: launches in which CUDA, a library or the kernel itself is loaded. No later step has them."""

import numpy as np

from esprof.core.types import NS_PER_MS, Ns
from esprof.replay.dfg import Cls, Dfg, LaneKind

MIN_FIRST_CALL_RATIO = 20
"""Least ratio of a first launch to the median of the kernel's other launches: pauses and full queues rarely reach it."""

MIN_FIRST_CALL_NS: Ns = NS_PER_MS
"""Shortest launch, ns, that counts as a first call."""


def first_calls(dfg: Dfg) -> np.ndarray:
    """Mask of the launches that load something, bool[N]: in the first recorded step, the first of each kernel on a rank if
    it takes `MIN_FIRST_CALL_RATIO` times as long as the kernel's other launches, or, if it has none, as all launches
    of the rank."""
    launches = np.flatnonzero(dfg.of(Cls.LAUNCH) & dfg.on(LaneKind.CPU))
    mask = np.zeros(dfg.nodes, bool)
    suspects = launches[(dfg.step[launches] <= dfg.marks.steps[0]) & (dfg.dur_ns[launches] >= MIN_FIRST_CALL_NS)]
    for node in suspects.tolist():
        of_rank = launches[dfg.rank[launches] == dfg.rank[node]]
        alike = of_rank[dfg.name[of_rank] == dfg.name[node]]
        others = alike[alike != node]
        is_first = not len(others) or dfg.recorded_ns[node] < dfg.recorded_ns[others].min()
        usual_ns = float(np.median(dfg.dur_ns[others if len(others) else of_rank]))
        mask[node] = is_first and dfg.dur_ns[node] >= MIN_FIRST_CALL_RATIO * usual_ns
    return mask
