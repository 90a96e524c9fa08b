"""The peak of a rank's memory, and what it consists of."""

from collections.abc import Sequence

import msgspec
import numpy as np

from esprof.core.types import Bytes, Rank
from esprof.replay.whatif.memory.blocks import MemoryBlocks, RankBlocks, Use


class PeakMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Most bytes that the tensors of a rank take at one time of a step, and their uses then."""

    rank: Rank
    on_gpu: bool
    peak: Bytes
    limit: Bytes | None
    """Memory of the device, or of the machine that processes share; None if unknown."""
    fits: bool | None
    """Whether the peak is within the limit; None without one. Other processes, and on a GPU the fragmentation of the
    allocator, may need memory, too."""
    parameters: Bytes
    gradients: Bytes
    optimizer: Bytes
    """States of optimizers."""
    activations: Bytes
    """Kept for the backward pass, the batch included."""
    temporary: Bytes
    buffers: Bytes
    """Buffers of modules."""
    buckets: Bytes
    """Buckets of DistributedDataParallel."""
    other: Bytes
    """Anything else on the GPU; not known on a CPU."""


_PARTS = ("parameters", "gradients", "optimizer", "activations", "temporary", "buffers", "buckets", "other")


def parts_of(peaks: Sequence[PeakMemory]) -> tuple[str, ...]:
    """The fields of `PeakMemory` that are parts of a peak, of those that any of `peaks` has."""
    return tuple(part for part in _PARTS if any(getattr(one, part) for one in peaks))


def peak_memory(memory: RankBlocks, limit: Bytes | None) -> PeakMemory:
    """The peak within the span of `memory`."""
    moment = _fullest(memory.blocks, memory.span_ns)
    now = memory.blocks.where(memory.blocks.at(moment))
    peak = memory.held + int(now.bytes.sum())
    of = {use: int(now.bytes[now.use == use].sum()) for use in Use}
    return PeakMemory(
        rank=memory.rank,
        on_gpu=memory.on_gpu,
        peak=peak,
        limit=limit,
        fits=None if limit is None else peak <= limit,
        parameters=memory.parameters,
        gradients=memory.gradients + of[Use.GRADIENT],
        optimizer=memory.optimizer,
        activations=of[Use.ACTIVATION],
        temporary=of[Use.TEMPORARY],
        buffers=memory.buffers,
        buckets=memory.buckets,
        other=memory.other,
    )


def _fullest(blocks: MemoryBlocks, span_ns: tuple[int, int]) -> int:
    """The time within the span at which most bytes are there."""
    at_ns, total = blocks.totals()
    inside = np.flatnonzero((at_ns >= span_ns[0]) & (at_ns <= span_ns[1]))
    if not len(inside):
        return span_ns[0]
    begin = int(np.searchsorted(at_ns, span_ns[0], side="left")) - 1
    top = inside[np.argmax(total[inside])]
    is_begin = begin >= 0 and total[begin] > total[top]
    return span_ns[0] if is_begin else int(at_ns[top])
