"""Graphs of pipelines with several stages a rank, as torch's runtime runs them."""

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
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    visual = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    listed = visual.get_schedule_ops("Interleaved1F1B", ranks, microbatches, num_stages_per_rank=chunks)
    theirs = schedules._add_send_recv(
        {rank: list(mine) for rank, mine in enumerate(listed)}, lambda stage: stage % ranks, ranks * chunks
    )
    shape = PipelineShape(PipelineSchedule.INTERLEAVED, ranks, microbatches, chunks)
    called = runtime._RuntimeDrawing(shape, range(ranks), LaneKind.CPU)._calls(orders(shape))
    for rank, mine in enumerate(called):
        passes, found = 0, set()
        for action in theirs[rank]:
            kind = action.computation_type.name
            if kind in ("RECV_F", "RECV_B"):
                found.add((passes, kind[-1], action.stage_index, action.microbatch_index))
            passes += kind in ("FORWARD", "FULL_BACKWARD")
        assert {(done, *task) for done, tasks in enumerate(mine) for task in tasks} == found
