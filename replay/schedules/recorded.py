"""A recorded pipeline job: its schedule and the times of its stages, from the marks of its passes (`run.raw.passes`)."""

from collections.abc import Mapping, Sequence
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

    def under(self, schedule: PipelineSchedule) -> "RecordedPipeline":
        """The same passes and messages in the order of another schedule."""
        return replace(self, shape=self.shape._replace(schedule=schedule))

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
        raise NoPipeline("the job has collectives, not only the messages of its pipeline")
    passes = {rank: passes[rank] for rank in ranks}
    shape = _shape(list(passes.values()), dfg.marks.steps)
    return RecordedPipeline(shape, ranks, tuple(_step(run, dfg, number, shape, passes) for number in dfg.marks.steps))


def _step(run: Run, dfg: Dfg, number: int, shape: PipelineShape, passes: Mapping[Rank, "_RankPasses"]) -> PipelineStep:
    """One step; `passes` are those of the rank of each stage, in order."""
    ranks = list(passes)
    tasks, receives, sends = (dict[PipelineTask, Ns]() for _ in range(3))
    for place, rank in enumerate(ranks):
        tasks |= passes[rank].times(number)
        # Activations go to the stage after and come from that before, gradients the other way.
        for kind, source, to in ((StagePass.FORWARD, place - 1, place + 1), (StagePass.BACKWARD, place + 1, place - 1)):
            for word, other, found in (("recv", source, receives), ("send", to, sends)):
                if 0 <= other < len(ranks):
                    took = _message_ns(run, dfg, number, rank, ranks[other], word)
                    if len(took) != shape.microbatches:
                        raise NoPipeline(f"rank {rank} has {len(took)} messages for {shape.microbatches} passes")
                    found |= {PipelineTask(kind, place, batch): int(ns) for batch, ns in enumerate(took)}
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
class _RankPasses:
    """The passes of one rank in order, and the CPU time of each: from the last call for a message before it up to that
    before the next one; the last one of a step ends with its mark."""

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
        offset_ns = dfg.clock_offset_ns(events.ints("start_ns"), nodes[dfg.event[nodes] >= 0])
        end = (events.ints("start_ns") + events.ints("dur_ns"))[rows] - offset_ns
        start = _begins(events, rows) - offset_ns
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

    def times(self, step: int) -> dict[PipelineTask, Ns]:
        return {self.tasks[at]: int(self.took_ns[at]) for at in np.flatnonzero(self.step == step).tolist()}


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


def _begins(events: Table, rows: np.ndarray) -> np.ndarray:
    """When each pass (row of its mark) begins, ns: after the last call for a message since the pass before it in its step.

    What a rank does between its call and the pass, it does after it has waited.
    """
    codes, names = events.codes("name")
    calls = np.flatnonzero(np.array([*(name.startswith("c10d::") for name in names), False])[codes])
    start, step = events.ints("start_ns"), events.ints("step")
    begin: np.ndarray = start[rows]
    ended = np.append(np.iinfo(np.int64).min, (start + events.ints("dur_ns"))[rows])[:-1]
    if len(calls):
        at = np.searchsorted(start[calls], begin) - 1
        last = calls[at]
        is_between = (at >= 0) & (step[last] == step[rows]) & (start[last] >= ended)
        begin = np.where(is_between, start[last] + 1, begin)
    return begin


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
    codes, words = events.codes("collective")
    is_word = np.array([*(one == word for one in words), False])[codes[dfg.event[nodes]]]
    nodes = nodes[is_word & (events.ints("peer")[dfg.event[nodes]] == other)]
    took: np.ndarray = dfg.dur_ns[nodes[np.argsort(dfg.event[nodes])]]
    return took
