"""A recorded pipeline job: its schedule and the times of its stages, from the marks of its passes (`run.raw.passes`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from esprof.core.errors import UsageError
from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.schedules.graph import PipelineStep, StageTime
from esprof.replay.schedules.orders import orders
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass
from esprof.replay.schedules.waiting import waiting_graph
from esprof.run.raw.passes import pass_of
from esprof.run.run import Run
from esprof.run.schema import Table

SCHEDULES = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
"""Schedules of one stage a rank and of whole backward passes: their times tell each other's."""


@dataclass(frozen=True)
class RecordedPipeline:
    """The steps of a pipeline job, each rank of which has one stage."""

    shape: PipelineShape
    ranks: tuple[Rank, ...]
    """Rank of each stage."""
    steps: tuple[PipelineStep, ...]

    def graph(self) -> Dfg:
        """What replay runs. Raises UsageError if the schedule does not allow its numbers."""
        return waiting_graph(self.shape, self.steps, self.ranks)

    def in_shape(self, shape: PipelineShape) -> "RecordedPipeline":
        """The same stages under another schedule, or with their batch cut into other microbatches: mean times of a
        microbatch change with its size."""
        times = self.shape.microbatches / shape.microbatches
        if times == 1:
            return replace(self, shape=shape)
        steps = [
            replace(step, stages=[_scaled(stage, times) for stage in step.stages], tasks_ns={}) for step in self.steps
        ]
        return RecordedPipeline(shape, self.ranks, tuple(steps))

    def scaled(self, factor: float) -> "RecordedPipeline":
        """The same pipeline with all times multiplied."""
        steps = [
            PipelineStep(
                number=step.number,
                stages=[_scaled(stage, factor) for stage in step.stages],
                before_ns=[round(factor * took) for took in step.before_ns],
                after_ns=[round(factor * took) for took in step.after_ns],
                tasks_ns={task: round(factor * took) for task, took in step.tasks_ns.items()},
            )
            for step in self.steps
        ]
        return RecordedPipeline(self.shape, self.ranks, tuple(steps))


def _scaled(stage: StageTime, factor: float) -> StageTime:
    return StageTime(
        forward_ns=round(factor * stage.forward_ns),
        inputs_ns=round(factor * stage.inputs_ns),
        weights_ns=round(factor * stage.weights_ns),
        receive_ns=round(factor * stage.receive_ns),
    )


class NoPipeline(Exception):
    """The run is not that of a pipeline whose schedule is known; the text is the reason."""


def recorded_pipeline(run: Run, dfg: Dfg) -> RecordedPipeline:
    """The pipeline of the steps of `dfg`. Raises NoPipeline."""
    if dfg.has_gpu():
        raise NoPipeline("the passes of a pipeline are timed on CPUs only, and this job computes on GPUs")
    passes = {rank: _RankPasses.of(run, dfg, rank) for rank in dfg.marks.ranks}
    if not all(len(one.step) for one in passes.values()):
        raise NoPipeline("the run does not mark the passes of a pipeline on all ranks (torch.distributed.pipelining)")
    stages = {rank: set(one.stages) for rank, one in passes.items()}
    if any(len(of_rank) != 1 for of_rank in stages.values()):
        raise NoPipeline("a rank has several stages")
    ranks = tuple(sorted(stages, key=lambda rank: min(stages[rank])))
    if [min(stages[rank]) for rank in ranks] != list(range(run.world_size)):
        raise NoPipeline("ranks share a stage, or lack one")
    if (dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & ~_of_messages(run, dfg)).any():
        raise NoPipeline("the job has collectives beside the messages of its pipeline")
    shape = _shape([passes[rank] for rank in ranks], dfg.marks.steps)
    receive_ns = {rank: _receive_ns(run, dfg, rank, ranks[place - 1]) for place, rank in enumerate(ranks) if place}
    steps = []
    for at, number in enumerate(dfg.marks.steps):
        of_ranks = [passes[rank].times(number) for rank in ranks]
        steps.append(
            PipelineStep(
                number=number,
                stages=[
                    StageTime(
                        forward_ns=mine.forward_ns,
                        inputs_ns=mine.backward_ns,
                        weights_ns=0,
                        receive_ns=int(receive_ns[rank][at]) if rank in receive_ns else 0,
                    )
                    for rank, mine in zip(ranks, of_ranks, strict=True)
                ],
                before_ns=[mine.before_ns for mine in of_ranks],
                after_ns=[mine.after_ns for mine in of_ranks],
                tasks_ns={task: took for mine in of_ranks for task, took in mine.tasks_ns.items()},
            )
        )
    return RecordedPipeline(shape, ranks, tuple(steps))


def _shape(passes: Sequence["_RankPasses"], steps: Sequence[int]) -> PipelineShape:
    """The shape whose order all ranks follow in all steps. Raises NoPipeline."""
    recorded = {tuple(tuple(one.order(step)) for one in passes) for step in steps}
    if len(recorded) == 1:
        (order,) = recorded
        microbatches = sum(task.kind == StagePass.FORWARD for task in order[0])
        for schedule in SCHEDULES:
            shape = PipelineShape(schedule, len(passes), microbatches)
            try:
                if [list(mine) for mine in order] == orders(shape):
                    return shape
            except UsageError:
                continue
    raise NoPipeline(f"the recorded order of passes is that of none of the schedules {', '.join(SCHEDULES)}")


@dataclass(frozen=True)
class _StepTimes:
    """What one rank does in one step, ns; passes are means over the microbatches."""

    forward_ns: Ns
    backward_ns: Ns
    before_ns: Ns
    after_ns: Ns
    tasks_ns: dict[PipelineTask, Ns]


@dataclass(frozen=True)
class _RankPasses:
    """The passes of one rank in order, and the CPU time from the begin of each until the next begins; the last one of a step
    until its end."""

    tasks: list[PipelineTask]
    step: np.ndarray
    took_ns: np.ndarray
    before_ns: dict[int, Ns]
    """By step: CPU time before the first pass."""
    after_ns: dict[int, Ns]

    @classmethod
    def of(cls, run: Run, dfg: Dfg, rank: Rank) -> "_RankPasses":
        """Those of the steps of `dfg`."""
        events = run.events(rank)
        rows, tasks = _marks(events, dfg.marks.steps)
        step = events.ints("step")[rows]
        nodes = dfg.nodes_of(rank)
        nodes = nodes[dfg.on(LaneKind.CPU)[nodes] & (dfg.step[nodes] >= 0)]
        known = nodes[dfg.event[nodes] >= 0]
        # The clock of the graph against that of the events: most nodes begin with their event.
        ahead = int(np.median(dfg.recorded_ns[known] - events.ints("start_ns")[dfg.event[known]])) if len(known) else 0
        start = events.ints("start_ns")[rows] + ahead
        end = start + events.ints("dur_ns")[rows]
        moment, took = dfg.recorded_ns[nodes], dfg.dur_ns[nodes] + dfg.residual_ns[nodes]
        at = np.searchsorted(start, moment, side="right") - 1
        inside = (at >= 0) & (np.append(step, -1)[at] == dfg.step[nodes])
        is_last = np.append(step[1:] != step[:-1], True) if len(step) else np.zeros(0, bool)
        behind = inside & np.append(is_last, False)[at] & (moment >= np.append(end, 0)[at])
        own = inside & ~behind

        def by_step(mask: np.ndarray) -> dict[int, Ns]:
            return {one: int(took[mask & (dfg.step[nodes] == one)].sum()) for one in dfg.marks.steps}

        took_ns = np.bincount(at[own], took[own], len(rows))
        return cls(tasks, step, took_ns, by_step(~inside), by_step(behind))

    @cached_property
    def stages(self) -> list[int]:
        return [task.stage for task in self.tasks]

    def order(self, step: int) -> list[PipelineTask]:
        return [self.tasks[at] for at in np.flatnonzero(self.step == step).tolist()]

    def times(self, step: int) -> _StepTimes:
        is_forward = np.array([task.kind == StagePass.FORWARD for task in self.tasks])
        here = self.step == step
        return _StepTimes(
            round(self.took_ns[here & is_forward].mean()),
            round(self.took_ns[here & ~is_forward].mean()),
            self.before_ns[step],
            self.after_ns[step],
            {self.tasks[at]: int(self.took_ns[at]) for at in np.flatnonzero(here).tolist()},
        )


def _marks(events: Table, steps: Sequence[int]) -> tuple[np.ndarray, list[PipelineTask]]:
    """(rows of the marks of passes in these steps, ascending; the tasks). A pass that torch marks, too, counts once."""
    codes, names = events.codes("name")
    tasks = {
        code: PipelineTask(StagePass(found.kind), found.stage, found.microbatch)
        for code, name in enumerate(names)
        if (found := pass_of(name)) is not None
    }
    rows = np.flatnonzero(np.isin(codes, list(tasks)) & np.isin(events.ints("step"), steps))
    _, first = np.unique(np.stack([codes[rows], events.ints("step")[rows]]), axis=1, return_index=True)
    rows = rows[np.sort(first)]
    return rows, [tasks[code] for code in codes[rows].tolist()]


def _of_messages(run: Run, dfg: Dfg) -> np.ndarray:
    """bool[N]: nodes of sends and receives."""
    mask = np.zeros(dfg.nodes, bool)
    for rank in dfg.marks.ranks:
        nodes = dfg.nodes_of(rank)
        nodes = nodes[dfg.event[nodes] >= 0]
        mask[nodes] = run.events(rank).ints("is_p2p")[dfg.event[nodes]] == 1
    return mask


def _receive_ns(run: Run, dfg: Dfg, rank: Rank, before: Rank) -> np.ndarray:
    """Mean transfer, both ways, between a rank and that of the stage before in each step, ns, float64[steps]."""
    took = []
    for mine, other in ((rank, before), (before, rank)):
        nodes = dfg.nodes_of(mine)
        nodes = nodes[dfg.of(Cls.COMMUNICATION)[nodes] & (dfg.collective[nodes] >= 0) & (dfg.event[nodes] >= 0)]
        took.append(nodes[run.events(mine).ints("peer")[dfg.event[nodes]] == other])
    nodes = np.concatenate(took)
    found = [dfg.dur_ns[nodes[dfg.step[nodes] == step]] for step in dfg.marks.steps]
    return np.array([one.mean() if len(one) else 0.0 for one in found])
