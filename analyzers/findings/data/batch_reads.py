"""What the making of batches read, by pass over the loader: from storage, and again from storage."""

from dataclasses import dataclass

import numpy as np

from esprof.core.types import NS_PER_S, Bytes, Rank
from esprof.replay.whatif.loading.batches import MIN_DISK_RATE, making_times
from esprof.replay.whatif.loading.passes import training_loaders
from esprof.run.run import Run
from esprof.run.schema import Table


@dataclass(frozen=True)
class BatchReads:
    """Reads of the training batches of a rank, as far as the kernel's counters were recorded."""

    asked: Bytes
    """Bytes of a pass that the batches asked for, from storage or from memory: the mean of all passes but the first, or
    that of the first."""
    is_from_storage: bool
    """Whether the reads from storage are fast enough to be what blocks the batches, rather than locks or sleeps."""
    missed_again: float | None
    """Share of the bytes asked for in later passes that came from storage, though the first pass had read all the data;
    None where that is not certain."""


def batch_reads(run: Run, rank: Rank) -> BatchReads:
    """What the batches of `rank` read in its training passes.

    A later pass reads the same data only if the first was complete, and if no other host reads a part of it.
    """
    stages = run.stages(rank)
    passes = training_loaders(run, rank)
    nexts = stages.where(stages.is_kind("next") & np.isin(stages.ints("loader"), passes))
    made = stages.where(stages.is_kind("fetch")) if (nexts.ints("workers") > 0).any() else nexts
    known = (made.ints("read_chars") > 0) & (made.ints("read_bytes") >= 0) & np.isin(made.ints("loader"), passes)
    made = made.where(known)
    asked, stored, loader = (made.ints(name) for name in ("read_chars", "read_bytes", "loader"))
    later = loader > passes[0] if len(passes) else known
    of_pass = later if later.any() else ~later
    is_again = later.any() and _is_on_one_host(run) and _is_complete(nexts, int(passes[0]))
    blocked_s = making_times(made).blocked_ns.sum() / NS_PER_S
    return BatchReads(
        asked=round(float(asked[of_pass].sum()) / max(1, len(np.unique(loader[of_pass])))),
        is_from_storage=bool(stored.sum() > 0 and stored.sum() >= MIN_DISK_RATE * blocked_s),
        missed_again=min(1.0, float(stored[later].sum() / asked[later].sum())) if is_again else None,
    )


def _is_on_one_host(run: Run) -> bool:
    """Whether all ranks are known to share one page cache."""
    hosts = {run.rank(rank).host for rank in run.ranks}
    return run.world_size == 1 or (len(hosts) == 1 and None not in hosts and not run.missing_ranks)


def _is_complete(nexts: Table, number: int) -> bool:
    """Whether this pass took all the batches of its loader."""
    mine = nexts.ints("loader") == number
    return bool(0 < nexts.ints("batches")[mine].max() <= np.count_nonzero(mine))
