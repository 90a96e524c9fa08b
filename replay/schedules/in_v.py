"""Orders of schedules in the shape of a V: rank r has stages r and 2p − 1 − r of a pipeline of p ranks, and the backward is
split in two."""

from collections.abc import Iterator

from esprof.core.types import Rank
from esprof.replay.schedules.pipeline import PipelineShape, PipelineTask, StagePass, TaskCounter, repeated

_F, _B, _I, _W = StagePass.FORWARD, StagePass.BACKWARD, StagePass.INPUTS, StagePass.WEIGHTS


def zbv(pipeline: PipelineShape, rank: Rank) -> Iterator[PipelineTask]:
    """ZBV (Qi et al., ICLR 2024, §6)."""
    ranks, batches = pipeline.ranks, pipeline.microbatches
    down, up = rank, pipeline.stages - 1 - rank
    counted = TaskCounter()
    yield from repeated(counted, 2 * (ranks - rank) - 1, [(_F, down)])
    yield from repeated(counted, rank, [(_F, up), (_F, down)])
    yield from repeated(counted, ranks - rank, [(_F, up), (_I, up), (_W, up)])
    while counted.left(_F, up, batches):
        if counted.left(_F, down, batches):
            yield counted.next(_F, down)
        yield from repeated(counted, 1, [(_I, down), (_W, down), (_F, up), (_I, up), (_W, up)])
    yield from repeated(counted, rank, [(_I, down), (_I, up)])
    yield from repeated(counted, ranks - rank, [(_I, down), (_W, down)])
    yield from repeated(counted, counted.left(_W, up, batches), [(_W, up)])
    yield from repeated(counted, counted.left(_W, down, batches), [(_W, down)])


def dualpipev(pipeline: PipelineShape, rank: Rank) -> Iterator[PipelineTask]:
    """DualPipeV (DeepSeek, 2025), where a forward and a backward pass do not overlap: they run one after the other."""
    ranks, batches = pipeline.ranks, pipeline.microbatches
    down, up = rank, pipeline.stages - 1 - rank
    after = ranks - rank - 1
    counted, waiting = TaskCounter(), list[int]()

    def inputs(stage: int) -> PipelineTask:
        waiting.append(stage)
        return counted.next(_I, stage)

    yield from repeated(counted, 2 * after, [(_F, down)])
    yield from repeated(counted, rank + 1, [(_F, down), (_F, up)])
    for _ in range(after):
        yield inputs(up)
        yield counted.next(_W, waiting.pop(0))
        yield counted.next(_F, up)
    main = batches - 2 * ranks + rank + 1
    yield from repeated(counted, main, [(_F, down), (_B, up), (_F, up), (_B, down)])
    yield from repeated(counted, after, [(_B, up), (_F, up), (_B, down)])
    for turn in range(2 * (rank + 1)):
        stage = down if turn % 2 else up
        # The second half splits the backward, so that the ranks before get their gradients sooner.
        yield inputs(stage) if turn > rank else counted.next(_B, stage)
    for _ in range(after):
        if waiting:
            yield counted.next(_W, waiting.pop(0))
        yield inputs(down)
    yield from (counted.next(_W, stage) for stage in waiting)
