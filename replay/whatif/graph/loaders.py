"""Evidence in a run of how batches are made."""

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.run.run import Run

IN_THE_RANK = "SingleProcess"
"""Occurs in the name of a loader that makes its batches in the rank itself."""


def has_unseen_workers(run: Run, dfg: Dfg) -> bool:
    """Whether unrecorded workers make batches: how far they work ahead is unknown."""
    names = {dfg.names[name] for name in np.unique(dfg.name[dfg.of(Cls.DATA)]).tolist()}
    is_by_workers = any("DataLoader" in name and IN_THE_RANK not in name for name in names)
    return is_by_workers and not any(are_batches_recorded(run, rank) for rank in run.ranks)


def are_batches_recorded(run: Run, rank: Rank) -> bool:
    """Whether the run contains the times at which the workers of this rank made their batches."""
    return bool(run.stages(rank).is_kind("fetch").any())
