"""Memory of a rank of a pipeline job whose passes are in another order.

What a pass allocates and frees, it allocates and frees wherever it is in the step. What happened since the pass before it
moves along, such as buffers of messages.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.schedules.orders import orders
from esprof.replay.schedules.passes import rank_marks
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineTask
from esprof.replay.schedules.recorded import NoPipeline, pipeline_shape
from esprof.replay.whatif.memory.blocks import NEVER, RankBlocks
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run


def with_schedule(run: Run, memory: RankBlocks, schedule: PipelineSchedule) -> RankBlocks:
    """The memory of a rank under this schedule. Raises Declined if no pipeline was recorded, or if the schedule computes
    backward passes in other parts than the recorded one."""
    steps = np.unique(run.events(memory.rank).ints("step"))
    marks = {rank: rank_marks(run.events(rank), rank, steps[steps >= 0].tolist()) for rank in run.ranks}
    mine = marks[memory.rank]
    try:
        shape, ranks = pipeline_shape(marks, np.unique(mine.step).tolist(), run.world_size)
        order = orders(shape._replace(schedule=schedule))[ranks.index(memory.rank)]
    except NoPipeline as reason:
        raise Declined(str(reason)) from reason
    except UsageError as error:
        raise Declined(error.reason) from error
    if schedule.splits_backward != shape.schedule.splits_backward:
        raise Declined("what is freed between two parts of a backward pass is not known from passes in other parts")
    events = run.events(memory.rank)
    end = (events.ints("start_ns") + events.ints("dur_ns"))[mine.row]
    pieces = [np.zeros((0, 3), np.int64)]
    for step in np.unique(mine.step).tolist():
        at = np.flatnonzero(mine.step == step)
        first = int(events.ints("start_ns")[mine.row[at[0]]])
        pieces.append(_moved([mine.tasks[one] for one in at.tolist()], np.append(first, end[at]), order))
    return _retimed(memory, np.concatenate(pieces))


def _moved(recorded: Sequence[PipelineTask], bounds_ns: np.ndarray, order: Sequence[PipelineTask]) -> np.ndarray:
    """(begin, end, by how much it moves) of each recorded pass, int64[P, 3], ns, if they take place in this order;
    `bounds_ns`, int64[P + 1], are the begin of the first and the end of each."""
    begin, end = bounds_ns[:-1], bounds_ns[1:]
    at = {task: number for number, task in enumerate(recorded)}
    places = np.array([at[task] for task in order])
    took = (end - begin)[places]
    moved = np.empty_like(begin)
    moved[places] = begin[0] + np.cumsum(took) - took
    return np.stack([begin, end, moved - begin], axis=1)


def _retimed(memory: RankBlocks, pieces: np.ndarray) -> RankBlocks:
    """The memory with all times within the pieces (begin, end, by how much they move; ascending, ns) moved."""
    begin, end, shift = pieces.T

    def moved(times: np.ndarray) -> np.ndarray:
        at = np.searchsorted(end, times)
        inside = (at < len(end)) & (times > np.append(begin, NEVER)[at])
        return times + np.where(inside, np.append(shift, 0)[at], 0)

    blocks = memory.blocks
    made = moved(blocks.begin_ns)
    # What another pass frees, as a buffer of a message, may be made after it now.
    freed = np.where(blocks.end_ns == NEVER, NEVER, np.maximum(moved(blocks.end_ns), made))
    return memory.with_blocks(replace(blocks, begin_ns=made, end_ns=freed))
