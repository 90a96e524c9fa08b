"""How the batches of a rank are made."""

from dataclasses import dataclass

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.host.host_cpus import batch_cpu_ns
from esprof.replay.whatif.loading.loader_evidence import IN_THE_RANK, are_batches_recorded
from esprof.run.run import Run


@dataclass(frozen=True)
class BatchSource:
    """How the batches of a rank are made, as far as it was recorded."""

    make_ns: float | None
    """Mean time to make a batch, ns; None where it was not recorded."""
    cpu_ns: float | None
    """Mean CPU time to make a batch, ns; None where unknown."""
    workers: int | None
    """Number of loader workers; 0 if the rank makes batches itself, None where unknown."""


def batch_source(run: Run, dfg: Dfg, rank: Rank) -> BatchSource:
    """How the batches of `rank` are made. Without stages in the trace, the graph has only the waits for loader workers."""
    made = (dfg.rank == rank) & dfg.of(Cls.DATA) & (dfg.dur_ns > 0)
    by_worker = made & dfg.on(LaneKind.LOADER)
    workers_recorded = int(run.stages(rank).ints("workers").max(initial=0))
    if by_worker.any() and are_batches_recorded(run, rank):
        workers = max(workers_recorded, len(np.unique(dfg.lane[by_worker])))
        return BatchSource(float(np.mean(dfg.dur_ns[by_worker])), batch_cpu_ns(run, rank), workers)
    own = made & np.array([IN_THE_RANK in name for name in dfg.names])[dfg.name]
    if own.any() and not workers_recorded:
        return BatchSource(float(np.mean(dfg.dur_ns[own])), _own_cpu_ns(run, rank), 0)
    return BatchSource(None, None, workers_recorded or None)


def _own_cpu_ns(run: Run, rank: Rank) -> float | None:
    """Mean CPU time of a batch that the rank makes itself, ns; None where that was not recorded."""
    stages = run.stages(rank)
    ran = stages.ints("cpu_ns")[stages.is_kind("next") & (stages.ints("workers") == 0)]
    return float(ran[ran >= 0].mean()) if (ran >= 0).any() else None
