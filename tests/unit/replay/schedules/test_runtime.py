"""Graphs of pipelines with several stages a rank, as torch's runtime runs them."""

from unittest.mock import create_autospec

import pytest

from esprof.replay.dfg import Cls, Edge, LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules import runtime
from esprof.replay.schedules.graph import PipelineStep, StageTime
from esprof.replay.schedules.orders import orders
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass
from esprof.replay.schedules.runtime import runtime_graph
from tests.cases.graph import reasons


def steps(shape: PipelineShape, transfer: int = 0, count: int = 1) -> list[PipelineStep]:
    """Steps with stages of 10 forward and 20 backward, and 5 before and after the passes of each rank."""
    stage = StageTime(forward_ns=10, inputs_ns=20, weights_ns=0, receive_ns=transfer)
    beside = [5] * shape.ranks
    return [
        PipelineStep(number=number, stages=[stage] * shape.stages, before_ns=beside, after_ns=beside)
        for number in range(count)
    ]


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (3, 2), (4, 3)])
def test_equal_stages_without_transfers_idle_as_the_closed_form_says(ranks, chunks):
    """A rank idles for (ranks − 1) passes of one of its stages there and back (Narayanan et al., SC 2021, §2.2)."""
    shape = PipelineShape(PipelineSchedule.INTERLEAVED, ranks, 2 * ranks, chunks)
    took = replay(runtime_graph(shape, steps(shape, count=2), range(ranks))).step_ns()
    assert took[0] == (shape.microbatches * chunks + ranks - 1) * 30 + 10


def test_a_message_passes_while_its_receiver_computes():
    shape = PipelineShape(PipelineSchedule.INTERLEAVED, 2, 4, 2)
    slow = {PipelineTask(StagePass.FORWARD, 1, 0): 100}
    (step,) = steps(shape, transfer=5)
    dfg = runtime_graph(shape, [PipelineStep(**{**vars(step), "tasks_ns": slow})], [0, 1])
    start = replay(dfg).start_ns
    sent = next(node for node in range(dfg.nodes) if dfg.label(node) == "F 1 of stage 0: received")
    computed = next(node for node in range(dfg.nodes) if dfg.label(node) == "F 0 of stage 1")
    assert dfg.of(Cls.COMMUNICATION)[sent]
    assert start[computed] < start[sent] < start[computed] + 100
    assert Edge.RENDEZVOUS in reasons(dfg, sent).values()


@pytest.mark.slow  # It imports torch.
@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(2, 2, 8), (3, 2, 6), (4, 3, 8)])
def test_ranks_call_for_messages_where_torch_puts_the_calls(ranks, chunks, microbatches):
    visual = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    listed = visual.get_schedule_ops("Interleaved1F1B", ranks, microbatches, num_stages_per_rank=chunks)
    shape = PipelineShape(PipelineSchedule.INTERLEAVED, ranks, microbatches, chunks)
    assert called(shape) == by_torch(listed, ranks, chunks)


def called(shape: PipelineShape) -> list[set[tuple[int, str, int, int]]]:
    """For each rank: (passes that it has done, F or B, stage, microbatch) of each message that it then calls for."""
    drawing = runtime._RuntimeDrawing(shape, range(shape.ranks), LaneKind.CPU)
    return [
        {
            (done, "F" if task.kind == StagePass.FORWARD else "B", *task[1:])
            for done, tasks in enumerate(mine)
            for task in tasks
        }
        for mine in drawing._calls(orders(shape))
    ]


def by_torch(listed, ranks: int, chunks: int) -> list[set[tuple[int, str, int, int]]]:
    """The same of torch's passes, with pauses."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    theirs = schedules._add_send_recv(
        {rank: list(mine) for rank, mine in enumerate(listed)}, lambda stage: stage % ranks, ranks * chunks
    )
    found = []
    for rank in range(ranks):
        passes, mine = 0, set()
        for action in theirs[rank]:
            kind = action.computation_type.name
            if kind in ("RECV_F", "RECV_B"):
                mine.add((passes, kind[-1], action.stage_index, action.microbatch_index))
            passes += kind in ("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT")
        found.append(mine)
    return found


@pytest.mark.slow  # It imports torch.
@pytest.mark.parametrize(
    ("ranks", "chunks", "microbatches"), [(2, 1, 4), (3, 1, 6), (4, 1, 8), (4, 1, 6), (2, 2, 8), (3, 2, 6)]
)
def test_ranks_of_a_zero_bubble_schedule_call_for_messages_where_torch_puts_the_calls(ranks, chunks, microbatches):
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    stage = create_autospec(pipelining.PipelineStage, instance=True)  # A real one needs a process group.
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, ranks, None, ranks * chunks
    order = pipelining.ScheduleInterleavedZeroBubble([stage] * chunks, microbatches).pipeline_order
    listed = [order[rank] for rank in range(ranks)]
    shape = PipelineShape(PipelineSchedule.ZB1P, ranks, microbatches, chunks)
    assert called(shape) == by_torch(listed, ranks, chunks)
