"""ESP503: GPU memory that the allocator has reserved but cannot use."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core import readable
from esprof.core.types import Bytes, Rank
from esprof.replay.dfg import Cls
from esprof.replay.whatif.gradients.buckets import MIB
from esprof.run.run import Run

MIN_UNUSED_SHARE = 0.25
"""Least share of the reserved memory that was never in use. Blocks are rounded up and pooled by size, so some memory is
always unused."""

MIN_UNUSED_BYTES: Bytes = 512 * MIB
"""Less unused memory does not limit a job's batch size."""

_SCENARIO = "allocator=0"


@dataclass(frozen=True)
class _Peak:
    """Peak of the memory that a rank's allocator had reserved, and the most that it had allocated up to then, bytes."""

    reserved: Bytes
    allocated: Bytes

    @property
    def unused(self) -> Bytes:
        return self.reserved - self.allocated


def fragmentation(case: Case) -> Iterator[Cause]:
    """Ranks whose allocator calls the driver within steps while much of its reserved memory is free but fragmented."""
    dfg = case.replayed.built.dfg
    is_call = dfg.of(Cls.ALLOCATOR) & np.isin(dfg.step, dfg.marks.steps)
    calls = {rank: int(np.count_nonzero(is_call & (dfg.rank == rank))) for rank in dfg.marks.ranks}
    peaks = {rank: found for rank in dfg.marks.ranks if calls[rank] and (found := _peak(case.run, rank)) is not None}
    ranks = tuple(
        rank for rank, one in peaks.items() if one.unused >= max(MIN_UNUSED_BYTES, MIN_UNUSED_SHARE * one.reserved)
    )
    if not ranks:
        return
    worst = peaks[max(ranks, key=lambda rank: peaks[rank].unused)]
    saves_time = case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO))
    yield Cause(
        id="ESP503",
        title=f"Fragmented GPU memory causes cudaMalloc calls: {readable.size(worst.unused)} of the "
        f"{readable.size(worst.reserved)} reserved were never in use",
        ranks=ranks,
        scenario=_SCENARIO if saves_time else None,
        severity=None if saves_time else "warning",
        confidence="medium",
        evidence={
            "reserved": by_rank({rank: peaks[rank].reserved for rank in ranks}, "bytes"),
            "allocated_at_most": by_rank({rank: peaks[rank].allocated for rank in ranks}, "bytes"),
            "unused": by_rank({rank: peaks[rank].unused for rank in ranks}, "bytes"),
            "allocator_calls_per_step": by_rank({rank: round(calls[rank] / len(dfg.marks.steps), 2) for rank in ranks}),
        },
        advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which lets blocks grow; pad batches to a few "
        "sizes; allocate long-lived tensors before short-lived ones.",
    )


def _peak(run: Run, rank: Rank) -> _Peak | None:
    """The rank's peak in the memory samples; None where PyTorch's CUDA allocator was not sampled."""
    samples = run.memory(rank)
    reserved = samples.ints("reserved")
    if not len(samples) or reserved.max() < 0:
        return None
    top = int(reserved.argmax())
    most = max(int(samples.ints(column)[: top + 1].max()) for column in ("allocated", "peak_allocated"))
    return _Peak(int(reserved[top]), most) if most >= 0 else None


_PAGES = (
    Page(
        "ESP503",
        "Fragmented GPU memory",
        "PyTorch's allocator caches the blocks that a job has freed. When later tensors fit into none of them, for "
        "example because shapes change, it asks the driver for more memory. That stops the device, and the job can "
        "run out of memory while much of it is free.",
        "`reserved` is the most memory that the allocator had reserved, `allocated at most` the most that had been "
        "in use up to then, and `unused` the difference, all from memory samples. A rank is listed if its allocator "
        "called the driver within the recorded steps, and at least a quarter of its reserved memory, and at least "
        "512 MiB, was never in use.",
        "`allocator=0` where that saves anything; this finding then replaces ESP501. Otherwise none: fragmentation "
        "costs memory, not time.",
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; use fewer different shapes (pad to a few sizes, use "
        "fixed batches); allocate long-lived tensors first.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=fragmentation)
