"""Orders of schedules in which a rank takes its stages in turn, or has only one."""

from collections.abc import Iterator

from esprof.core.types import Rank
from esprof.replay.schedules.pipeline import PipelineShape, PipelineTask, StagePass, TaskCounter


def all_forward_first(pipeline: PipelineShape, rank: Rank) -> Iterator[PipelineTask]:
    """All forward passes, then all backward passes, stage by stage: GPipe, and breadth first with several stages
    (Lamy-Poirier, MLSys 2023), whose backward begins with the last microbatch."""
    stages = range(rank, pipeline.stages, pipeline.ranks)
    for stage in stages:
        yield from (PipelineTask(StagePass.FORWARD, stage, batch) for batch in range(pipeline.microbatches))
    batches = list(range(pipeline.microbatches))
    for stage in reversed(stages):
        order = batches if len(stages) == 1 else batches[::-1]
        yield from (PipelineTask(StagePass.BACKWARD, stage, batch) for batch in order)


def one_f_one_b(pipeline: PipelineShape, rank: Rank) -> Iterator[PipelineTask]:
    """Forward and backward in turn after a warm-up: 1F1B, interleaved 1F1B (Narayanan et al., SC 2021), and ZB1P (Qi et
    al., ICLR 2024), which delays the backward for weights by `rank` rounds."""
    ranks, chunks = pipeline.ranks, pipeline.chunks
    splits = pipeline.schedule.splits_backward
    total = pipeline.microbatches * chunks
    # A rank with several stages starts its turns earlier by one more hop, so that no rank waits for the next round.
    hops = 2 if chunks > 1 and not splits else 1
    warm_up = min(total, (chunks - 1) * ranks + hops * (ranks - 1 - rank))
    counted, waiting = TaskCounter(), list[tuple[int, int]]()
    for turn in range(total + warm_up):
        if turn < total:
            yield counted.next(StagePass.FORWARD, rank + ranks * (turn // ranks % chunks))
        if turn < warm_up:
            continue
        stage = rank + ranks * (chunks - 1 - (turn - warm_up) // ranks % chunks)
        yield counted.next(StagePass.INPUTS if splits else StagePass.BACKWARD, stage)
        if splits:
            waiting.append((turn, stage))
            if turn - waiting[0][0] >= rank:
                yield counted.next(StagePass.WEIGHTS, waiting.pop(0)[1])
    yield from (counted.next(StagePass.WEIGHTS, stage) for _, stage in waiting)
