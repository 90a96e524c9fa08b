"""Passes over DataLoaders that train."""

import numpy as np

from esprof.core.types import Rank
from esprof.run.run import Run
from esprof.run.schema import Table
from esprof.run.step_rows import step_at


def training_passes(nexts: Table, step: np.ndarray) -> np.ndarray:
    """Mask of the calls in passes of more than one step: a pass within one step is a validation.

    `nexts` are rows of the table `stages` of kind `next`, and `step` the step in which each ended, -1 outside of all.
    """
    loader, at = np.unique(nexts.ints("loader"), return_inverse=True)
    first, last = np.full(len(loader), np.iinfo(np.int64).max), np.full(len(loader), -1)
    known = step >= 0
    np.minimum.at(first, at[known], step[known])
    np.maximum.at(last, at[known], step[known])
    several: np.ndarray = (last > first)[at]
    return several


def training_loaders(run: Run, rank: Rank) -> np.ndarray:
    """Numbers of the passes of `rank` that train, ascending."""
    stages = run.stages(rank)
    nexts = stages.where(stages.is_kind("next"))
    training = training_passes(nexts, step_at(run.steps(rank), nexts.ints("end_ns")))
    return np.unique(nexts.ints("loader")[training])
