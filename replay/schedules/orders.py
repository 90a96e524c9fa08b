"""The order in which each rank of a pipeline does its tasks, and how many activations it holds.

The orders are those of `torch.distributed.pipelining` (torch 2.13) without its pauses.
"""

from esprof.core.errors import UsageError
from esprof.replay.schedules.in_v import dualpipev, zbv
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass
from esprof.replay.schedules.turns import all_forward_first, one_f_one_b

_ORDER = {
    PipelineSchedule.GPIPE: all_forward_first,
    PipelineSchedule.LOOPED_BFS: all_forward_first,
    PipelineSchedule.ONE_F_ONE_B: one_f_one_b,
    PipelineSchedule.INTERLEAVED: one_f_one_b,
    PipelineSchedule.ZB1P: one_f_one_b,
    PipelineSchedule.ZBV: zbv,
    PipelineSchedule.DUALPIPEV: dualpipev,
}


def orders(pipeline: PipelineShape) -> list[list[PipelineTask]]:
    """The tasks of each rank in order. Raises UsageError if the schedule does not allow the pipeline's numbers."""
    if fault := pipeline.fault():
        raise UsageError(f"schedule {pipeline.schedule}: {fault}")
    return [list(_ORDER[pipeline.schedule](pipeline, rank)) for rank in range(pipeline.ranks)]


def held(pipeline: PipelineShape) -> list[float]:
    """The largest number of microbatches whose activations each rank holds at once, where a microbatch counts by the share
    of the rank's stages that hold it. A stage holds them from its forward to the end of its backward for weights."""
    most = []
    for order in orders(pipeline):
        now = peak = 0
        for task in order:
            now += {StagePass.FORWARD: 1, StagePass.INPUTS: 0}.get(task.kind, -1)
            peak = max(peak, now)
        most.append(peak / pipeline.chunks)
    return most
