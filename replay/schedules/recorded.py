"""A recorded pipeline job: its schedule and the times of its stages, from the marks of its passes (`run.raw.passes`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from esprof.core.errors import UsageError
from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.schedules.graph import PipelineStep, StageTime
from esprof.replay.schedules.orders import orders
from esprof.replay.schedules.passes import RankMarks, RankPasses
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass
from esprof.replay.schedules.runtime import runtime_graph
from esprof.replay.schedules.waiting import waiting_graph
from esprof.run.run import Run

OF_ONE_STAGE = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
"""Schedules of one stage a rank, whose ranks wait for each message at once."""
OF_SEVERAL_STAGES = (PipelineSchedule.INTERLEAVED, PipelineSchedule.ZB1P)
"""Schedules of torch's runtime, whose ranks may have several stages."""
SCHEDULES = (*OF_ONE_STAGE, *OF_SEVERAL_STAGES)
"""Schedules whose times tell each other's."""


@dataclass(frozen=True)
class RecordedPipeline:
    """The steps of a pipeline job."""

    shape: PipelineShape
    ranks: tuple[Rank, ...]
    """The ranks in the order of the pipeline."""
    steps: tuple[PipelineStep, ...]
    passes: tuple[RankPasses, ...] = field(repr=False, default=())
    """The recorded passes of each of the ranks."""

    def graph(self) -> Dfg:
        """What replay runs. Raises UsageError if the schedule does not allow its numbers."""
        draw = waiting_graph if self.shape.schedule in OF_ONE_STAGE else runtime_graph
        return draw(self.shape, self.steps, self.ranks)

    def scaled(self, factor: float) -> "RecordedPipeline":
        """The same pipeline with all times multiplied."""

        def longer(times: Mapping[PipelineTask, Ns]) -> dict[PipelineTask, Ns]:
            return {task: round(factor * took) for task, took in times.items()}

        steps = [
            PipelineStep(
                number=step.number,
                stages=step.stages,
                before_ns=[round(factor * took) for took in step.before_ns],
                after_ns=[round(factor * took) for took in step.after_ns],
                tasks_ns=longer(step.tasks_ns),
                receives_ns=longer(step.receives_ns),
                sends_ns=longer(step.sends_ns),
            )
            for step in self.steps
        ]
        return replace(self, steps=tuple(steps))


class NoPipeline(Exception):
    """The run is not that of a pipeline whose schedule is known; the text is the reason."""


def recorded_pipeline(run: Run, dfg: Dfg) -> RecordedPipeline:
    """The pipeline of the steps of `dfg`. Raises NoPipeline."""
    if dfg.has_gpu():
        raise NoPipeline("the passes of a pipeline are timed on CPUs only, and this job computes on GPUs")
    passes = {rank: RankPasses.of(run, dfg, rank) for rank in dfg.marks.ranks}
    shape, ranks = pipeline_shape(passes, dfg.marks.steps, run.world_size)
    if (dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & ~_of_messages(run, dfg)).any():
        raise NoPipeline("the job has collectives, not only the messages of its pipeline")
    passes = {rank: passes[rank] for rank in ranks}
    steps = tuple(_step(run, dfg, number, shape, passes) for number in dfg.marks.steps)
    return RecordedPipeline(shape, ranks, steps, tuple(passes.values()))


def _step(run: Run, dfg: Dfg, number: int, shape: PipelineShape, passes: Mapping[Rank, RankPasses]) -> PipelineStep:
    """One step; `passes` are those of the ranks in the order of the pipeline."""
    ranks = list(passes)
    tasks, receives, sends = (dict[PipelineTask, Ns]() for _ in range(3))
    for rank in ranks:
        tasks |= passes[rank].times(number)
    for (source, to), sent in _messages(shape, [passes[rank].order(number) for rank in ranks]).items():
        for word, rank, other, found in (("send", source, to, sends), ("recv", to, source, receives)):
            took = _message_ns(run, dfg, number, ranks[rank], ranks[other], word)
            if len(took) != len(sent):
                raise NoPipeline(f"rank {ranks[rank]} has {len(took)} messages for {len(sent)} passes")
            ends = [sender if word == "send" else receiver for sender, receiver in sent]
            found |= dict(zip(ends, took.tolist(), strict=True))
    unused = StageTime(forward_ns=0, inputs_ns=0, weights_ns=0)
    return PipelineStep(
        number=number,
        stages=[unused] * shape.stages,
        before_ns=[one.before_ns[number] for one in passes.values()],
        after_ns=[one.after_ns[number] for one in passes.values()],
        tasks_ns=tasks,
        receives_ns=receives,
        sends_ns=sends,
    )


def _messages(
    shape: PipelineShape, queues: Sequence[Sequence[PipelineTask]]
) -> dict[tuple[int, int], list[tuple[PipelineTask, PipelineTask]]]:
    """For two places, (pass, pass that needs what it gives) of all messages of the first to the second, in order."""
    found: dict[tuple[int, int], list[tuple[PipelineTask, PipelineTask]]] = {}
    for place, queue in enumerate(queues):
        for task in queue:
            if task.kind == StagePass.WEIGHTS:
                continue
            # Activations go to the stage after, gradients to that before.
            stage = task.stage + (1 if task.kind == StagePass.FORWARD else -1)
            if 0 <= stage < shape.stages and shape.rank_of(stage) != place:
                found.setdefault((place, shape.rank_of(stage)), []).append((task, task._replace(stage=stage)))
    return found


def pipeline_shape(
    marks: Mapping[Rank, RankMarks], steps: Sequence[int], world: int
) -> tuple[PipelineShape, tuple[Rank, ...]]:
    """(the shape whose order all ranks follow in all steps, the ranks in the order of the pipeline) of a job of `world`
    ranks. Raises NoPipeline."""
    if not all(len(one.step) for one in marks.values()):
        raise NoPipeline("the run does not mark the passes of a pipeline on all ranks (torch.distributed.pipelining)")
    stages = {rank: sorted(set(one.stages)) for rank, one in marks.items()}
    ranks = tuple(sorted(stages, key=lambda rank: stages[rank][0]))
    taken = [stage for turn in zip_longest(*(stages[rank] for rank in ranks)) for stage in turn]
    if len(ranks) != world or taken != list(range(len(taken))):
        raise NoPipeline("ranks share a stage, lack one, or do not take the stages in turn")
    return _shape([marks[rank] for rank in ranks], steps, len(taken) // len(ranks)), ranks


def _shape(passes: Sequence[RankMarks], steps: Sequence[int], chunks: int) -> PipelineShape:
    """The shape with so many stages a rank whose order all ranks follow in all steps. Raises NoPipeline."""
    recorded = {tuple(tuple(one.order(step)) for one in passes) for step in steps}
    if len(recorded) == 1:
        (order,) = recorded
        microbatches = sum(task.kind == StagePass.FORWARD for task in order[0]) // chunks
        for schedule in SCHEDULES if chunks == 1 else OF_SEVERAL_STAGES:
            shape = PipelineShape(schedule, len(passes), microbatches, chunks)
            try:
                if [list(mine) for mine in order] == orders(shape):
                    return shape
            except UsageError:
                continue
    raise NoPipeline(f"the recorded order of passes is that of none of the schedules {', '.join(SCHEDULES)}")


def _of_messages(run: Run, dfg: Dfg) -> np.ndarray:
    """bool[N]: nodes of sends and receives."""
    mask = np.zeros(dfg.nodes, bool)
    for rank in dfg.marks.ranks:
        nodes = dfg.nodes_of(rank)
        nodes = nodes[dfg.event[nodes] >= 0]
        mask[nodes] = run.events(rank).ints("is_p2p")[dfg.event[nodes]] == 1
    return mask


def _message_ns(run: Run, dfg: Dfg, step: int, rank: Rank, other: Rank, word: str) -> np.ndarray:
    """Times of the messages that a rank sent to another or received from it (`word`) in a step, in order, ns."""
    events, nodes = run.events(rank), dfg.nodes_of(rank)
    is_end = dfg.of(Cls.COMMUNICATION)[nodes] & (dfg.collective[nodes] >= 0) & (dfg.event[nodes] >= 0)
    nodes = nodes[is_end & (dfg.step[nodes] == step)]
    is_message = events.matches("collective", word.__eq__) & (events.ints("peer") == other)
    nodes = nodes[is_message[dfg.event[nodes]]]
    took: np.ndarray = dfg.dur_ns[nodes[np.argsort(dfg.event[nodes])]]
    return took
