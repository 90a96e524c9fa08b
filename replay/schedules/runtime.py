"""The graph of a pipeline as torch's runtime for schedules of several stages a rank runs it over gloo.

A rank calls for each message early, at the place of its list of passes at which torch puts the call, and waits for it before
the pass that needs it. Its sends are waited for at the end of a step. A message passes when it is sent and called for;
messages of one rank to another pass one after the other.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind
from esprof.replay.schedules.graph import MessageDrawing, PipelineStep
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass


def runtime_graph(pipeline: PipelineShape, steps: Sequence[PipelineStep], ranks: Sequence[Rank]) -> Dfg:
    """Steps of `pipeline`, whose places the `ranks` have in order: each computes on a CPU thread.

    Raises UsageError if the schedule does not allow these numbers.
    """
    return _RuntimeDrawing(pipeline, ranks, LaneKind.CPU).of_steps(steps)


@dataclass
class _RuntimeDrawing(MessageDrawing):
    """A graph under construction."""

    called: list[list[list[PipelineTask]]] = field(default_factory=list)
    """For each rank and number of passes that it has done: the tasks whose message it then calls for."""

    def _begin(self, queues: Sequence[Sequence[PipelineTask]]) -> None:
        self.called = self.called or self._calls(queues)
        for place in range(len(queues)):
            self._call(place, 0)

    def _add_reductions(self, place: int) -> dict[int, Edge]:
        """A rank ends its step when all that it sent has passed."""
        rank_of = self.pipeline.rank_of
        sent = {node: Edge.WAIT for task, node in self.passed.items() if rank_of(task.stage) == place}
        return super()._add_reductions(place) | sent

    def _calls(self, queues: Sequence[Sequence[PipelineTask]]) -> list[list[list[PipelineTask]]]:
        """`called`. torch counts in rounds. In each a rank pauses or does its next pass, once what that needs is done, and
        the rank that needs what the pass gives calls for it."""
        called: list[list[list[PipelineTask]]] = [[[] for _ in range(len(queue) + 1)] for queue in queues]
        left = [deque(mine) for mine in _with_pauses(self.pipeline, queues)]
        passes = [0] * len(queues)
        while any(left):
            for place, queue in enumerate(left):
                if not queue or (queue[0] is not None and not self._is_given(queue[0])):
                    continue
                if (task := queue.popleft()) is None:
                    continue
                self.done[task] = -1
                passes[place] += 1
                if (receiver := self._receiver(task)) is not None:
                    other = self.pipeline.rank_of(receiver.stage)
                    called[other][passes[other]].append(receiver)
        self.done.clear()
        return called

    def _is_given(self, task: PipelineTask) -> bool:
        needed = self._needed(task)
        return needed is None or needed in self.done

    def _call(self, place: int, done: int) -> None:
        """The rank at this place calls for its messages after so many passes."""
        for task in self.called[place][done]:
            self._reach(task, place)

    def _add_transfer(self, sender: PipelineTask, task: PipelineTask, ends: dict[int, Edge]) -> int:
        source, to = (self.ranks[self.pipeline.rank_of(one.stage)] for one in (sender, task))
        link = Lane(to, LaneKind.COMM, f"messages from rank {source}")
        name = f"{self.name[self.done[sender]]}: received"
        return self._add(name, Cls.COMMUNICATION, self._received_ns(sender, task), link, ends)

    def _add_if_ready(self, place: int, queue: Sequence[PipelineTask], at: int) -> bool:
        """Add a task of a rank's queue, unless it waits for a message that has not passed."""
        task, needed = queue[at], self._needed(queue[at])
        waits = dict[int, Edge]()
        if needed is not None:
            is_mine = self.pipeline.rank_of(needed.stage) == place
            given = self.done if is_mine else self.passed
            if needed not in given:
                return False
            waits = {} if is_mine else {given[needed]: Edge.WAIT}
        self.done[task] = self._add_pass(task, waits)
        if (receiver := self._receiver(task)) is not None:
            self._pass_to(receiver)
        self._call(place, at + 1)
        return True

    def _receiver(self, task: PipelineTask) -> PipelineTask | None:
        """The task of another rank that needs what this one gives; None if there is none."""
        to = self._given_to(task)
        if to is None or self.pipeline.rank_of(to) == self.pipeline.rank_of(task.stage):
            return None
        return task._replace(stage=to)


def _with_pauses(pipeline: PipelineShape, queues: Sequence[Sequence[PipelineTask]]) -> list[list[PipelineTask | None]]:
    """The passes of each rank with the pauses (None) of torch's schedules."""
    if pipeline.schedule == PipelineSchedule.ZB1P:
        return _until_given([list(_zero_bubble(pipeline, place, queue)) for place, queue in enumerate(queues)])
    return [list(_interleaved(pipeline, place, queue)) for place, queue in enumerate(queues)]


def _interleaved(pipeline: PipelineShape, place: int, queue: Sequence[PipelineTask]) -> Iterator[PipelineTask | None]:
    """The rank at this place pauses before all, after the warm-up, and before each backward pass once there is no forward
    pass left."""
    ranks, total = pipeline.ranks, pipeline.microbatches * pipeline.chunks
    warm_up = min(total, (pipeline.chunks - 1) * ranks + 2 * (ranks - 1 - place))
    yield from [None] * place
    yield from queue[:warm_up]
    yield from [None] * (pipeline.stages + 2 * (ranks - 1 - place) - warm_up - place)
    both = warm_up + 2 * (total - warm_up)
    yield from queue[warm_up:both]
    for task in queue[both:]:
        yield None
        yield task


def _zero_bubble(pipeline: PipelineShape, place: int, queue: Sequence[PipelineTask]) -> Iterator[PipelineTask | None]:
    """The rank at this place pauses before all, and after the warm-up if it has one."""
    ranks = pipeline.ranks
    warm_up = min(pipeline.microbatches * pipeline.chunks, (pipeline.chunks - 1) * ranks + ranks - 1 - place)
    yield from [None] * place
    yield from queue[:warm_up]
    yield from [None] * (ranks - 1 - place if warm_up else 0)
    yield from queue[warm_up:]


def _until_given(queues: list[list[PipelineTask | None]]) -> list[list[PipelineTask | None]]:
    """The queues with further pauses: in each round a rank pauses if its next forward pass needs one of this or later."""
    paused: list[list[PipelineTask | None]] = [[] for _ in queues]
    at, done = [0] * len(queues), set[PipelineTask]()
    while any(place < len(queue) for place, queue in zip(at, queues, strict=True)):
        now = set[PipelineTask]()
        for place, queue in enumerate(queues):
            if at[place] == len(queue):
                continue
            task = queue[at[place]]
            if task is not None:
                if task.kind == StagePass.FORWARD and task.stage and task._replace(stage=task.stage - 1) not in done:
                    paused[place].append(None)
                    continue
                now.add(task)
            paused[place].append(task)
            at[place] += 1
        done |= now
    return paused
