"""Evidence in a run of how batches are made."""

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import UNSEEN_LOADER, Cls, Dfg, Edge
from esprof.replay.whatif.graph import edits
from esprof.run.run import Run

IN_THE_RANK = "SingleProcess"
"""Occurs in the name of a loader that makes its batches in the rank itself."""


def has_unseen_workers(run: Run, dfg: Dfg) -> bool:
    """Whether unrecorded workers make batches: how far they work ahead is unknown."""
    names = {dfg.names[name] for name in np.unique(dfg.name[dfg.of(Cls.DATA)]).tolist()}
    is_by_workers = any("DataLoader" in name and IN_THE_RANK not in name for name in names)
    return is_by_workers and not any(are_batches_recorded(run, rank) for rank in run.ranks)


def of_unseen_workers(dfg: Dfg) -> np.ndarray:
    """Mask of the batches of unrecorded workers, each of which lasts as long as its rank waits for it, bool[N]."""
    is_unseen = np.array([lane.role == UNSEEN_LOADER for lane in dfg.lanes] + [False])
    mask: np.ndarray = is_unseen[dfg.lane]
    return mask


def at_their_pace(dfg: Dfg, recorded: Dfg, ranks: np.ndarray) -> Dfg:
    """`dfg` with batches of unrecorded workers of `ranks` that come no sooner after one another than in `recorded`.

    Workers whose batches a rank waits for are busy from one such batch to the next. Batches that a change made faster are
    left out. Both graphs have the same nodes.
    """
    are_unchanged = (dfg.dur_ns > 0) & (dfg.dur_ns == recorded.dur_ns)
    waited = np.flatnonzero(of_unseen_workers(dfg) & are_unchanged & np.isin(dfg.rank, ranks))
    waited = waited[np.lexsort((recorded.recorded_ns[waited], recorded.lane[waited]))]
    before, after = waited[:-1], waited[1:]
    follows = recorded.lane[before] == recorded.lane[after]
    before, after = before[follows], after[follows]
    lag = recorded.recorded_ns[after] - recorded.recorded_ns[before] - recorded.dur_ns[before]
    return edits.link(dfg, before, after, lag, Edge.THREAD)


def are_batches_recorded(run: Run, rank: Rank) -> bool:
    """Whether the run contains the times at which the workers of this rank made their batches."""
    return bool(run.stages(rank).is_kind("fetch").any())
