"""The steps of the whole run, inside windows and out, as the job had them."""

from typing import Literal

import numpy as np

from esprof.core.types import Rank
from esprof.run.run import Run
from esprof.run.schema import Table

Phase = Literal["plain", "timed"]
"""`plain` steps ran without the profiler, `timed` steps under it. The two are never compared with one another."""


def numbers(run: Run, phase: Phase) -> np.ndarray:
    """Numbers of the steps that were in `phase` on every rank, ascending, without the job's first step, int64[steps]."""
    tables = [run.steps(rank) for rank in run.ranks]
    if not all(len(table) for table in tables):
        return np.zeros(0, np.int64)
    first = min(int(table.ints("step").min()) for table in tables)
    common: set[int] | None = None
    for table in tables:
        here = {step for step, of in zip(table.ints("step").tolist(), table.texts("phase"), strict=True) if of == phase}
        common = here if common is None else common & here
    return np.array(sorted((common or set()) - {first}), np.int64)


def rows(run: Run, rank: Rank, steps: np.ndarray) -> Table:
    """What `rank` tells of `steps`, which it has, one row each."""
    table = run.steps(rank)
    told, first = np.unique(table.ints("step"), return_index=True)
    return table.where(first[np.isin(told, steps)])


def over_ranks(run: Run, steps: np.ndarray, column: str) -> np.ndarray:
    """A column of the step tables at `steps`, which all ranks have, int64[ranks, steps]; null is -1."""
    return np.stack([rows(run, rank, steps).ints(column) for rank in run.ranks])


def durations_ns(run: Run, steps: np.ndarray) -> np.ndarray:
    """How long the job took for each of `steps`, ns, int64[steps].

    The job's step runs from the moment the last rank begins it to the moment the last rank ends it, so that consecutive
    steps neither overlap nor leave a gap. A clock that is ahead on one rank moves both borders alike.
    """
    starts, took = over_ranks(run, steps, "start_ns"), over_ranks(run, steps, "dur_ns")
    of_job: np.ndarray = (starts + took).max(axis=0) - starts.max(axis=0)
    return of_job


def epochs(run: Run) -> tuple[int, ...]:
    """The steps in which the first rank begins a pass over a DataLoader that lasts for more than a step, but for its first.

    A pass that begins and ends in one step is a validation.
    """
    rank = run.ranks[0]
    nexts, steps = run.stages(rank).where(run.stages(rank).is_kind("next")), run.steps(rank)
    starts, numbers = steps.ints("start_ns"), steps.ints("step")
    if not len(nexts) or not len(steps):
        return ()
    order = np.argsort(starts)
    at = np.searchsorted(starts[order], nexts.ints("end_ns"), side="right") - 1
    passes = nexts.ints("loader")
    found = []
    for number in np.unique(passes).tolist():
        of_pass = at[passes == number]
        if of_pass.max() > of_pass.min():
            found.append(int(of_pass.min()))
    # The first pass may have begun before the first step.
    return tuple(dict.fromkeys(int(numbers[order][first]) for first in sorted(found)[1:] if first >= 0))
