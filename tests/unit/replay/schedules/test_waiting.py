"""Graphs of pipelines whose messages need both ends and are waited for."""

import pytest

from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.graph import PipelineStep, StageTime
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass
from esprof.replay.schedules.waiting import waiting_graph

_GPIPE, _1F1B = PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B


def steps(ranks: int, transfer: int = 0, count: int = 1, **more) -> list[PipelineStep]:
    """Steps with stages of 10 forward and 20 backward."""
    stages = [
        StageTime(forward_ns=10, inputs_ns=20, weights_ns=0, receive_ns=transfer if n else 0) for n in range(ranks)
    ]
    beside = {"before_ns": [0] * ranks, "after_ns": [0] * ranks} | more
    return [PipelineStep(number=number, stages=stages, **beside) for number in range(count)]


def took(shape: PipelineShape, of: list[PipelineStep]) -> list[int]:
    return replay(waiting_graph(shape, of, range(shape.ranks))).step_ns().tolist()


@pytest.mark.parametrize("schedule", [_GPIPE, _1F1B])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_equal_stages_without_transfers_idle_as_the_closed_form_says(schedule, ranks):
    assert took(PipelineShape(schedule, ranks, 8), steps(ranks)) == [(8 + ranks - 1) * 30]


@pytest.mark.parametrize("schedule", [_GPIPE, _1F1B])
def test_one_microbatch_goes_there_and_back(schedule):
    assert took(PipelineShape(schedule, 3, 1), steps(3, transfer=5)) == [3 * 30 + 4 * 5]


def test_a_transfer_waits_until_its_receiver_has_come_to_it():
    """The second stage takes 100 for the first microbatch: the data of the second cannot pass meanwhile."""
    (step,) = steps(2, transfer=5, tasks_ns={PipelineTask(StagePass.FORWARD, 1, 0): 100})
    dfg = waiting_graph(PipelineShape(_GPIPE, 2, 2), [step], [0, 1])
    activations = dfg.of(Cls.COMMUNICATION) & (dfg.rank == 1) & (dfg.dur_ns > 0)
    assert replay(dfg).start_ns[activations].tolist() == [10, 115]


def test_ranks_wait_for_their_sends_as_torch_does():
    """Computed by hand. GPipe: rank 0 takes its first gradient after its last activation has passed, at 135. 1F1B: it sends
    its second activation, and takes its first gradient, when rank 1 has gone back for the first time, at 135."""
    slow = {PipelineTask(StagePass.FORWARD, 1, 0): 100}
    assert took(PipelineShape(_GPIPE, 2, 3), steps(2, transfer=5, tasks_ns=slow)) == [240]
    assert took(PipelineShape(_1F1B, 2, 3), steps(2, transfer=5, tasks_ns=slow)) == [230]


def test_steps_follow_each_other_on_each_rank():
    """Rank 1 does 7 before its passes and 3 after them."""
    whole = took(PipelineShape(_1F1B, 2, 2), steps(2, count=3, before_ns=[0, 7], after_ns=[0, 3]))
    assert whole[0] == 90
    assert len(whole) == 3


def test_places_may_be_those_of_any_ranks():
    dfg = waiting_graph(PipelineShape(_GPIPE, 2, 2), steps(2), [5, 3])
    assert dfg.marks.ranks == (3, 5)
    first = dfg.marks.first[0].tolist()
    assert [int(dfg.rank[node]) for node in first] == [3, 5]
