"""How long a step takes without the profiler."""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from esprof.trace.run import Run
from esprof.trace.schema import Table
from esprof.types import Ns, Rank

NEAR = 50
"""Plain steps before and after a window that tell what its steps would take: a job's pace changes over the hours."""

FEWEST = 3
"""Steps below which their median means little."""


def unprofiled_ns(run: Run, window: Sequence[int], shift: Mapping[Rank, Ns]) -> float | None:
    """Median duration of the plain steps next to `window`; None where there are too few.

    As `measured_ns`, it is the job's step: from when the last rank enters it to when the last rank leaves it.
    """
    plain = {rank: plain_steps(run.steps(rank)) for rank in run.ranks}
    shared = reduce(np.intersect1d, [steps.ints("step") for steps in plain.values()])
    near = np.append(shared[shared < window[0]][-NEAR:], shared[shared > window[-1]][:NEAR])
    if len(near) < FEWEST:
        return None
    enter, leave = [], []
    for rank, steps in plain.items():
        rows = np.searchsorted(steps.ints("step"), near)
        enter.append(steps.ints("start_ns")[rows] + shift.get(rank, 0))
        leave.append(enter[-1] + steps.ints("dur_ns")[rows])
    return float(np.median(np.max(leave, axis=0) - np.max(enter, axis=0)))


def plain_steps(steps: Table) -> Table:
    """The rows of steps without profiler, but the first of all: it holds what a job does once."""
    phases = np.array([phase or "" for phase in steps.texts("phase")])
    return steps.where(np.flatnonzero((phases == "plain") & (np.arange(len(steps)) > 0)))
