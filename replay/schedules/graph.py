"""The graph of one step of a pipeline job, from the times of its stages: what replay runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from esprof.core.errors import InputError
from esprof.core.types import Ns
from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind, StepMarks
from esprof.replay.engine.longest_path import run
from esprof.replay.schedules.orders import orders
from esprof.replay.schedules.pipeline import PipelineShape, PipelineTask, StagePass

_STEP = 1


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """What one stage costs, in ns; passes and transfers are those of one microbatch."""

    forward_ns: Ns
    inputs_ns: Ns
    """Backward for the gradient of the stage's input."""
    weights_ns: Ns
    """Backward for the gradients of its weights."""
    receive_ns: Ns = 0
    """Transfer of its input from the stage before, and of that input's gradient back: each takes so long."""
    reduce_ns: Ns = 0
    """All-reduce of the gradients of its weights among its replicas, once a step."""

    def of(self, kind: StagePass) -> Ns:
        """Time of one pass."""
        return {
            StagePass.FORWARD: self.forward_ns,
            StagePass.INPUTS: self.inputs_ns,
            StagePass.WEIGHTS: self.weights_ns,
            StagePass.BACKWARD: self.inputs_ns + self.weights_ns,
        }[kind]


def schedule_graph(pipeline: PipelineShape, stages: Sequence[StageTime]) -> Dfg:
    """One step of `pipeline`, with `stages` in order. A rank here is one stage's place in the pipeline: its replicas, which
    do the same at the same time, are one rank.

    A rank computes one task at a time. Transfers between two ranks go in the order of their senders, one at a time in each
    direction, and while the ranks compute; none is needed between two stages of one rank. The all-reduce of a stage
    starts after its last backward. Raises UsageError if the schedule does not allow these numbers.
    """
    if len(stages) != pipeline.stages:
        raise ValueError(f"{len(stages)} stages given for a pipeline of {pipeline.stages}")
    drawn = _ScheduleDrawing(pipeline, stages)
    drawn.add_tasks(orders(pipeline))
    last = [drawn.add_end(rank) for rank in range(pipeline.ranks)]
    return drawn.compiled(last)


@dataclass
class _ScheduleDrawing:
    """A graph under construction: nodes in topological order."""

    pipeline: PipelineShape
    stages: Sequence[StageTime]
    dur_ns: list[Ns] = field(default_factory=list)
    cls: list[Cls] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    before: list[dict[int, Edge]] = field(default_factory=list)
    lanes: dict[Lane, int] = field(default_factory=dict)
    on_lane: dict[Lane, int] = field(default_factory=dict)
    """The node last put on each lane."""
    done: dict[PipelineTask, int] = field(default_factory=dict)
    """The node after which the next stage may use what a task gives it: the task's, or that of the transfer."""
    last_of: dict[int, int] = field(default_factory=dict)
    """The node of the last backward of each stage."""

    def __post_init__(self) -> None:
        for rank in range(self.pipeline.ranks):
            self._add("step begins", Cls.WAIT, 0, _compute(rank))

    def add_tasks(self, queues: Sequence[Sequence[PipelineTask]]) -> None:
        """Add the tasks of all ranks, each once those that it waits for are there."""
        at = [0] * len(queues)
        while any(place < len(queue) for place, queue in zip(at, queues, strict=True)):
            before = list(at)
            for rank, queue in enumerate(queues):
                while at[rank] < len(queue) and self._is_ready(queue[at[rank]]):
                    self._add_task(queue[at[rank]])
                    at[rank] += 1
            if at == before:
                raise InputError(f"schedule {self.pipeline.schedule}: the ranks wait for one another")

    def add_end(self, rank: int) -> int:
        """Add the all-reduces of a rank's stages and the end of its step; return the node of the end."""
        mine = [stage for stage in range(self.pipeline.stages) if self.pipeline.rank_of(stage) == rank]
        ends = dict[int, Edge]()
        for stage in sorted(mine, key=self.last_of.__getitem__):
            if took := self.stages[stage].reduce_ns:
                lane = Lane(rank, LaneKind.COMM, "gradients")
                after = {self.last_of[stage]: Edge.LAUNCH}
                ends[self._add(f"all-reduce of stage {stage}", Cls.COMMUNICATION, took, lane, after)] = Edge.WAIT
        return self._add("step ends", Cls.WAIT, 0, _compute(rank), ends)

    def compiled(self, last: Sequence[int]) -> Dfg:
        """The Dfg, with the replayed starts as if they were recorded."""
        nodes, ranks = len(self.dur_ns), self.pipeline.ranks
        names = tuple(dict.fromkeys(self.name))
        number = {name: at for at, name in enumerate(names)}
        edges = [edge for before in self.before for edge in sorted(before.items())]
        unset = np.full(nodes, -1, np.int32)
        dfg = Dfg(
            t0_ns=0,
            dur_ns=np.array(self.dur_ns, np.int64),
            recorded_ns=np.zeros(nodes, np.int64),
            residual_ns=np.zeros(nodes, np.int64),
            contended=np.zeros(nodes, bool),
            lane=np.array(self.lane, np.int32),
            step=np.full(nodes, _STEP, np.int32),
            cls=np.array(self.cls, np.int8),
            name=np.array([number[name] for name in self.name], np.int32),
            event=unset,
            collective=unset,
            bytes=np.full(nodes, -1, np.int64),
            key=unset,
            pred_ptr=np.cumsum([0, *(len(before) for before in self.before)]).astype(np.int32),
            pred_idx=np.array([node for node, _ in edges], np.int32),
            pred_lag=np.zeros(len(edges), np.int32),
            pred_kind=np.array([kind for _, kind in edges], np.int8),
            names=names,
            lanes=tuple(self.lanes),
            marks=StepMarks(
                steps=(_STEP,),
                ranks=tuple(range(ranks)),
                first=np.arange(ranks)[None, :],
                last=np.array(last)[None, :],
            ),
        )
        start, _ = run(dfg, dfg.dur_ns, dfg.residual_ns)
        return replace(dfg, recorded_ns=start)

    def _needed(self, task: PipelineTask) -> PipelineTask | None:
        """The task of another stage that this one waits for."""
        if task.kind == StagePass.FORWARD:
            return task._replace(stage=task.stage - 1) if task.stage else None
        if task.kind == StagePass.WEIGHTS or task.stage == self.pipeline.stages - 1:
            return None
        after = task._replace(stage=task.stage + 1)
        # A stage may split the backward of a microbatch where its neighbour does not.
        whole, part = (after._replace(kind=kind) for kind in (StagePass.BACKWARD, StagePass.INPUTS))
        return whole if whole in self.done else part

    def _is_ready(self, task: PipelineTask) -> bool:
        needed = self._needed(task)
        return needed is None or needed in self.done

    def _add_task(self, task: PipelineTask) -> None:
        needed = self._needed(task)
        rank = self.pipeline.rank_of(task.stage)
        waits = {} if needed is None else {self.done[needed]: Edge.RENDEZVOUS}
        name = f"{task.kind} {task.microbatch} of stage {task.stage}"
        node = self._add(name, Cls.COMPUTE, self.stages[task.stage].of(task.kind), _compute(rank), waits)
        self.done[task] = self._sent(task, node)
        if task.kind != StagePass.FORWARD:
            self.last_of[task.stage] = node

    def _sent(self, task: PipelineTask, node: int) -> int:
        """The node after which another rank may use what a task gives it."""
        to = task.stage + (1 if task.kind == StagePass.FORWARD else -1)
        if task.kind == StagePass.WEIGHTS or not 0 <= to < self.pipeline.stages:
            return node
        sender, receiver = self.pipeline.rank_of(task.stage), self.pipeline.rank_of(to)
        took = self.stages[max(task.stage, to)].receive_ns
        if sender == receiver or not took:
            return node
        link = Lane(sender, LaneKind.COMM, f"to rank {receiver}")
        return self._add(f"{self.name[node]}: sent", Cls.COMMUNICATION, took, link, {node: Edge.LAUNCH})

    def _add(self, name: str, cls: Cls, dur_ns: Ns, lane: Lane, before: dict[int, Edge] | None = None) -> int:
        """Add a node behind the last one of its lane and `before`; return its number."""
        node = len(self.dur_ns)
        edges = dict(before or {})
        if lane in self.on_lane:
            edges.setdefault(self.on_lane[lane], Edge.LANE)
        self.dur_ns.append(dur_ns)
        self.cls.append(cls)
        self.name.append(name)
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.before.append(edges)
        self.on_lane[lane] = node
        return node


def _compute(rank: int) -> Lane:
    return Lane(rank, LaneKind.STREAM, "stream")
