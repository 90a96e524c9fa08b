"""ESP503: memory that the allocator holds and cannot hand out."""

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
"""Share of what the allocator holds that was never in use, from which on it counts. Blocks are rounded up and kept apart by
size, so that some always is."""

MIN_UNUSED_BYTES: Bytes = 512 * MIB
"""Fewer bytes cost no job its batch size."""

_NONE = "allocator=0"


@dataclass(frozen=True)
class _Held:
    """What the allocator of a rank held at most, and the most that it had handed out up to then, bytes."""

    reserved: Bytes
    allocated: Bytes

    @property
    def unused(self) -> Bytes:
        return self.reserved - self.allocated


def fragmentation(case: Case) -> Iterator[Cause]:
    """The allocator asks the driver for more within steps, though much of what it holds is free: in pieces too small."""
    dfg = case.replayed.built.dfg
    asks = dfg.of(Cls.ALLOCATOR) & np.isin(dfg.step, dfg.marks.steps)
    calls = {rank: int(np.count_nonzero(asks & (dfg.rank == rank))) for rank in dfg.marks.ranks}
    held = {rank: found for rank in dfg.marks.ranks if calls[rank] and (found := _held(case.run, rank)) is not None}
    ranks = tuple(
        rank for rank, one in held.items() if one.unused >= max(MIN_UNUSED_BYTES, MIN_UNUSED_SHARE * one.reserved)
    )
    if not ranks:
        return
    worst = held[max(ranks, key=lambda rank: held[rank].unused)]
    gains = case.worth_naming(case.pricer.saving_ns(_NONE))
    yield Cause(
        id="ESP503",
        title=f"The allocator asks for more GPU memory, though {readable.size(worst.unused)} of the "
        f"{readable.size(worst.reserved)} that it holds were never in use",
        ranks=ranks,
        scenario=_NONE if gains else None,
        severity=None if gains else "warning",
        confidence="medium",
        evidence={
            "reserved": by_rank({rank: held[rank].reserved for rank in ranks}, "bytes"),
            "allocated_at_most": by_rank({rank: held[rank].allocated for rank in ranks}, "bytes"),
            "unused": by_rank({rank: held[rank].unused for rank in ranks}, "bytes"),
            "allocator_calls_per_step": by_rank({rank: round(calls[rank] / len(dfg.marks.steps), 2) for rank in ranks}),
        },
        advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which lets blocks grow; pad batches to a few sizes; "
        "allocate what lives long before what comes and goes.",
    )


def _held(run: Run, rank: Rank) -> _Held | None:
    """By the samples of memory; None where CUDA's allocator was not sampled."""
    samples = run.memory(rank)
    reserved = samples.ints("reserved")
    if not len(samples) or reserved.max() < 0:
        return None
    top = int(reserved.argmax())
    most = max(int(samples.ints(column)[: top + 1].max()) for column in ("allocated", "peak_allocated"))
    return _Held(int(reserved[top]), most) if most >= 0 else None


_PAGES = (
    Page(
        "ESP503",
        "Fragmented GPU memory",
        "PyTorch's allocator keeps the blocks that a job has freed. Where later tensors fit into none of them, as when "
        "shapes change, it asks the driver for more, stops the device for that, and runs out of memory while much of it "
        "is free.",
        "`reserved` is the most that the allocator held, `allocated_at_most` the most that had been in use at once up to "
        "then, by the samples of memory. A rank counts whose allocator called the driver within the recorded steps, and "
        "of whose memory a quarter, and no less than 512 MiB, was never in use.",
        "`allocator=0` where that gains anything: then this is named in place of ESP501. Else none: it costs memory, not "
        "time.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fewer different shapes (padding to some sizes, fixed "
        "batches); long-lived tensors first.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=fragmentation)
