"""The graph of a pipeline over gloo as torch.distributed.pipelining runs it: messages need both ends, and are waited for.

A message passes when both ends are ready: the sender has done its task, and the task that needs it is the receiver's next.
Messages that a rank receives pass one after the other, as do those that it sends. Sends are waited for, too: in GPipe those
of the forward passes before the first backward; in 1F1B with the next receive where forward and backward passes take turns,
and otherwise after the next task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind
from esprof.replay.schedules.graph import MessageDrawing, PipelineStep
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask


def waiting_graph(pipeline: PipelineShape, steps: Sequence[PipelineStep], ranks: Sequence[Rank]) -> Dfg:
    """Steps of `pipeline`, whose places the `ranks` have in order: each has one stage and computes on a CPU thread.

    Raises UsageError if the schedule does not allow these numbers.
    """
    return _WaitingDrawing(pipeline, ranks, LaneKind.CPU).of_steps(steps)


@dataclass
class _WaitingDrawing(MessageDrawing):
    """A graph under construction."""

    sent: dict[PipelineTask, int] = field(default_factory=dict)
    """The node after which the rank of a task need not wait for its send any longer."""

    def _add_tasks(self, queues: Sequence[Sequence[PipelineTask]]) -> None:
        self.sent.clear()
        super()._add_tasks(queues)

    def _begin(self, queues: Sequence[Sequence[PipelineTask]]) -> None:
        for place, queue in enumerate(queues):
            self._reach(queue[0], place)

    def _add_reductions(self, place: int) -> dict[int, Edge]:
        """A rank ends its step when all that it sent is taken."""
        sent = {node: Edge.WAIT for task, node in self.sent.items() if task.stage == place}
        return super()._add_reductions(place) | sent

    def _add_transfer(self, sender: PipelineTask, task: PipelineTask, ends: dict[int, Edge]) -> int:
        assert self.now is not None
        name, (source, to) = self.name[self.done[sender]], (self.ranks[one.stage] for one in (sender, task))
        out, into = Lane(source, LaneKind.COMM, "messages sent"), Lane(to, LaneKind.COMM, "messages received")
        took = self.now.sends_ns.get(sender, 0)
        self.sent[sender] = self._add(f"{name}: sent", Cls.COMMUNICATION, took, out, ends)
        return self._add(f"{name}: received", Cls.COMMUNICATION, self._received_ns(sender, task), into, ends)

    def _add_if_ready(self, place: int, queue: Sequence[PipelineTask], at: int) -> bool:
        """Add a task of a rank's queue, unless it waits for a message that has not passed."""
        task, needed = queue[at], self._needed(queue[at])
        waited = [one for one in _waited_sends(self.pipeline.schedule, queue, at) if self._receiver(one) is not None]
        if any(one not in self.sent for one in (*waited, *([] if needed is None else [needed]))):
            return False
        waits = {self.sent[one]: Edge.WAIT for one in waited}
        self.done[task] = self._add_pass(task, waits | ({} if needed is None else {self.passed[needed]: Edge.WAIT}))
        receiver = self._receiver(task)
        if receiver is not None:
            self._pass_to(receiver)
        if at + 1 < len(queue):
            self._reach(queue[at + 1], place)
        return True

    def _receiver(self, task: PipelineTask) -> PipelineTask | None:
        """The task that needs what this one gives; None if no other rank does."""
        to = self._given_to(task)
        return None if to is None else task._replace(stage=to)


def _waited_sends(schedule: PipelineSchedule, queue: Sequence[PipelineTask], at: int) -> Sequence[PipelineTask]:
    """Tasks of a rank whose sends it has waited for when it begins the one at this place of its queue."""
    if schedule == PipelineSchedule.GPIPE:
        is_turn = at > 0 and queue[at - 1].kind != queue[at].kind
        return queue[:at] if is_turn else []
    takes_turns = at > 0 and queue[at - 1].kind != queue[at].kind
    return queue[max(at - 2, 0) : at if takes_turns else max(at - 1, 0)]
