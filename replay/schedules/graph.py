"""The graph of steps of a pipeline job, from the times of its stages: what replay runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from esprof.core.errors import InputError
from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind, StepMarks
from esprof.replay.engine.longest_path import run
from esprof.replay.schedules.orders import orders
from esprof.replay.schedules.pipeline import PipelineShape, PipelineTask, StagePass


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


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """One step: its stages in order, and what each rank does before its first task and after its last, ns."""

    number: int
    stages: Sequence[StageTime]
    before_ns: Sequence[Ns]
    after_ns: Sequence[Ns]
    tasks_ns: Mapping[PipelineTask, Ns] = field(default_factory=dict)
    """Times of tasks that differ from those of their stage."""
    receives_ns: Mapping[PipelineTask, Ns] = field(default_factory=dict)
    """Times of the transfers to tasks that differ from those of their stage."""
    sends_ns: Mapping[PipelineTask, Ns] = field(default_factory=dict)
    """How long the rank of a task waits for its send once the other end is there: 0 for others."""


def schedule_graph(pipeline: PipelineShape, stages: Sequence[StageTime]) -> Dfg:
    """One step of `pipeline` without anything else: `steps_graph`. A rank here is one stage's place in the pipeline: its
    replicas, which do the same at the same time, are one rank."""
    nothing = [0] * pipeline.ranks
    step = PipelineStep(number=1, stages=stages, before_ns=nothing, after_ns=nothing)
    return steps_graph(pipeline, [step], range(pipeline.ranks), LaneKind.STREAM)


def steps_graph(pipeline: PipelineShape, steps: Sequence[PipelineStep], ranks: Sequence[Rank], kind: LaneKind) -> Dfg:
    """Steps of `pipeline`, whose places the `ranks` have in order; they compute on a lane of this kind each.

    A rank computes one task at a time, and begins a step once it has ended the one before. Transfers between two ranks go in
    the order of their senders, one at a time in each direction, and while the ranks compute; none is needed between two
    stages of one rank. The all-reduce of a stage starts after its last backward. Raises UsageError if the schedule does not
    allow these numbers.
    """
    return ScheduleDrawing(pipeline, ranks, kind).of_steps(steps)


@dataclass
class ScheduleDrawing:
    """A graph under construction: nodes in topological order."""

    pipeline: PipelineShape
    ranks: Sequence[Rank]
    kind: LaneKind
    now: PipelineStep | None = None
    """The step that is being added."""
    steps: list[int] = field(default_factory=list)
    first: list[list[int]] = field(default_factory=list)
    """For each step, the node at which each rank begins it, in the order of the pipeline."""
    last: list[list[int]] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
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

    def of_steps(self, steps: Sequence[PipelineStep]) -> Dfg:
        """The graph of these steps. Raises UsageError if the schedule does not allow the numbers of the pipeline."""
        queues = orders(self.pipeline)
        for step in steps:
            if len(step.stages) != self.pipeline.stages:
                raise ValueError(f"{len(step.stages)} stages given for a pipeline of {self.pipeline.stages}")
            self._add_step(step, queues)
        return self._compiled()

    def _add_step(self, step: PipelineStep, queues: Sequence[Sequence[PipelineTask]]) -> None:
        """Add a step in which each rank does its queue of tasks."""
        self.now, places = step, range(self.pipeline.ranks)
        self.done.clear()
        self.last_of.clear()
        self.steps.append(step.number)
        self.first.append([self._add("step begins", Cls.WAIT, 0, self._compute(place)) for place in places])
        for place in places:
            self._add_beside("before the pipeline", step.before_ns[place], place, {})
        self._add_tasks(queues)
        ends = []
        for place in places:
            reduced = self._add_reductions(place)
            reduced = self._add_beside("after the pipeline", step.after_ns[place], place, reduced)
            ends.append(self._add("step ends", Cls.WAIT, 0, self._compute(place), reduced))
        self.last.append(ends)

    def _add_beside(self, name: str, took_ns: Ns, place: int, after: dict[int, Edge]) -> dict[int, Edge]:
        """Add what a rank does beside its tasks; return the edges from what the node after it must wait for."""
        if not took_ns:
            return after
        self._add(name, Cls.COMPUTE, took_ns, self._compute(place), after)
        return {}

    def _add_tasks(self, queues: Sequence[Sequence[PipelineTask]]) -> None:
        """Add the tasks of all ranks, each once those that it waits for are there."""
        at = [0] * len(queues)
        while any(place < len(queue) for place, queue in zip(at, queues, strict=True)):
            before = list(at)
            for place, queue in enumerate(queues):
                while at[place] < len(queue) and self._add_if_ready(place, queue, at[place]):
                    at[place] += 1
            if at == before:
                raise InputError(f"schedule {self.pipeline.schedule}: the ranks wait for one another")

    def _add_reductions(self, place: int) -> dict[int, Edge]:
        """Add the all-reduces of the stages at this place; return the edges from their ends."""
        mine = [stage for stage in range(self.pipeline.stages) if self.pipeline.rank_of(stage) == place]
        ends = dict[int, Edge]()
        for stage in sorted(mine, key=self.last_of.__getitem__):
            if took := self._time(stage).reduce_ns:
                lane = Lane(self.ranks[place], LaneKind.COMM, "gradients")
                after = {self.last_of[stage]: Edge.LAUNCH}
                ends[self._add(f"all-reduce of stage {stage}", Cls.COMMUNICATION, took, lane, after)] = Edge.WAIT
        return ends

    def _compiled(self) -> Dfg:
        """The Dfg, with the replayed starts as if they were recorded."""
        nodes, by_rank = len(self.dur_ns), np.argsort(self.ranks)
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
            step=np.array(self.step, np.int32),
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
                steps=tuple(self.steps),
                ranks=tuple(sorted(self.ranks)),
                first=np.array(self.first)[:, by_rank],
                last=np.array(self.last)[:, by_rank],
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

    def _add_if_ready(self, place: int, queue: Sequence[PipelineTask], at: int) -> bool:
        """Add a task of a rank's queue, unless it waits for another one that has not been added."""
        task, needed = queue[at], self._needed(queue[at])
        if needed is not None and needed not in self.done:
            return False
        node = self._add_pass(task, {} if needed is None else {self.done[needed]: Edge.RENDEZVOUS})
        self.done[task] = self._sent(task, node)
        return True

    def _add_pass(self, task: PipelineTask, waits: dict[int, Edge]) -> int:
        """Add the node of a task behind those that it waits for."""
        name = f"{task.kind} {task.microbatch} of stage {task.stage}"
        lane = self._compute(self.pipeline.rank_of(task.stage))
        assert self.now is not None
        took = self.now.tasks_ns.get(task)
        node = self._add(name, Cls.COMPUTE, self._time(task.stage).of(task.kind) if took is None else took, lane, waits)
        if task.kind != StagePass.FORWARD:
            self.last_of[task.stage] = node
        return node

    def _sent(self, task: PipelineTask, node: int) -> int:
        """The node after which another rank may use what a task gives it."""
        to = self._given_to(task)
        if to is None:
            return node
        sender, receiver = self.pipeline.rank_of(task.stage), self.pipeline.rank_of(to)
        took = self._time(max(task.stage, to)).receive_ns
        if sender == receiver or not took:
            return node
        link = Lane(self.ranks[sender], LaneKind.COMM, f"to rank {self.ranks[receiver]}")
        return self._add(f"{self.name[node]}: sent", Cls.COMMUNICATION, took, link, {node: Edge.LAUNCH})

    def _given_to(self, task: PipelineTask) -> int | None:
        """The stage that needs what a task gives; None if no other does."""
        to = task.stage + (1 if task.kind == StagePass.FORWARD else -1)
        return to if task.kind != StagePass.WEIGHTS and 0 <= to < self.pipeline.stages else None

    def _add(self, name: str, cls: Cls, dur_ns: Ns, lane: Lane, before: dict[int, Edge] | None = None) -> int:
        """Add a node behind the last one of its lane and `before`; return its number."""
        node = len(self.dur_ns)
        edges = dict(before or {})
        if lane in self.on_lane:
            edges.setdefault(self.on_lane[lane], Edge.LANE)
        self.dur_ns.append(dur_ns)
        self.step.append(self.steps[-1])
        self.cls.append(cls)
        self.name.append(name)
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.before.append(edges)
        self.on_lane[lane] = node
        return node

    def _time(self, stage: int) -> StageTime:
        assert self.now is not None
        return self.now.stages[stage]

    def _compute(self, place: int) -> Lane:
        return Lane(self.ranks[place], self.kind, "stream" if self.kind == LaneKind.STREAM else "main")


@dataclass
class MessageDrawing(ScheduleDrawing, ABC):
    """A graph under construction whose messages pass once both of their ends are there."""

    reached: dict[PipelineTask, int] = field(default_factory=dict)
    """The node after which a rank can receive what a task needs."""
    passed: dict[PipelineTask, int] = field(default_factory=dict)
    """The transfer of what a task gives."""

    def _add_tasks(self, queues: Sequence[Sequence[PipelineTask]]) -> None:
        self.reached.clear()
        self.passed.clear()
        self._begin(queues)
        super()._add_tasks(queues)

    @abstractmethod
    def _begin(self, queues: Sequence[Sequence[PipelineTask]]) -> None:
        """Add what the ranks can receive before their first tasks."""

    def _reach(self, task: PipelineTask, place: int) -> None:
        """The rank at this place can receive what the task needs."""
        self.reached[task] = self.on_lane[self._compute(place)]
        self._pass_to(task)

    def _pass_to(self, task: PipelineTask) -> None:
        """Add the transfer to a task, if both of its ends are there."""
        sender = self._needed(task)
        if sender is None or sender not in self.done or task not in self.reached or sender in self.passed:
            return
        ends = {self.done[sender]: Edge.LAUNCH, self.reached[task]: Edge.RENDEZVOUS}
        self.passed[sender] = self._add_transfer(sender, task, ends)

    @abstractmethod
    def _add_transfer(self, sender: PipelineTask, task: PipelineTask, ends: dict[int, Edge]) -> int:
        """Add the message from one task to another behind both `ends`; return the node after which it has passed."""

    def _received_ns(self, sender: PipelineTask, task: PipelineTask) -> Ns:
        assert self.now is not None
        return self.now.receives_ns.get(task, self._time(max(sender.stage, task.stage)).receive_ns)
