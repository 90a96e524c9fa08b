"""The windows of a run, and the run as if one of them were its only one."""

from collections.abc import Collection, Mapping

import numpy as np

from esprof.errors import UsageError
from esprof.replay.building.rank_events import step_borders
from esprof.trace.run import Run
from esprof.trace.schema import Table
from esprof.types import Rank


def windows_of(run: Run) -> list[range]:
    """The unbroken stretches of steps that every rank recorded, ascending."""
    return unbroken({rank: step_borders(run, rank) for rank in run.ranks})


def unbroken(steps_of: Mapping[Rank, Collection[int]]) -> list[range]:
    """The unbroken stretches of steps that all ranks have, ascending."""
    found: list[range] = []
    for step in sorted(set.intersection(*map(set, steps_of.values()))):
        if found and step == found[-1].stop:
            found[-1] = range(found[-1].start, step + 1)
        else:
            found.append(range(step, step + 1))
    return found


def at_window(run: Run, step: int) -> Run:
    """`run` as if it had been recorded in the window around `step` alone; steps without profiler stay.

    Raises UsageError where no window holds that step.
    """
    windows = windows_of(run)
    window = next((window for window in windows if step in window), None)
    if window is None:
        known = ", ".join(f"{window[0]}–{window[-1]}" for window in windows)
        raise UsageError(f"no window holds step {step}", remedy=f"Windows of this run: steps {known or 'none'}.")

    def read(name: str, rank: Rank) -> Table | None:
        if name == "steps":
            return _without_other_windows(run.steps(rank), window)
        table: Table = getattr(run, name)(rank)  # Each table has its name for a method.
        return table

    return Run(run.meta, read, run.path, run.warnings[len(run.meta.warnings) :], run.flight, step)


def _without_other_windows(steps: Table, window: range) -> Table:
    timed = np.array([phase == "timed" for phase in steps.texts("phase")], bool)
    return steps.where(~timed | np.isin(steps.ints("step"), window))
