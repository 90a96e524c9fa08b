"""The steps of a table of steps by time."""

import numpy as np

from esprof.run.schema import Table


def step_at(steps: Table, at_ns: np.ndarray) -> np.ndarray:
    """Number of the step in which each time lies, int64; -1 outside of all steps."""
    if not len(steps):
        return np.full(len(at_ns), -1)
    start, number = steps.ints("start_ns"), steps.ints("step")
    order = np.argsort(start)
    # Before the first step the index is -1: the last step, which begins later.
    row = order[np.searchsorted(start[order], at_ns, side="right") - 1]
    inside = (start[row] <= at_ns) & (at_ns < start[row] + steps.ints("dur_ns")[row])
    found: np.ndarray = np.where(inside, number[row], -1)
    return found
