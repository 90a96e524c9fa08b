"""Schedules of pipelines: idle time and activations held, against closed forms, and the edges of their graphs."""

from itertools import product

import pytest

from esprof.core.errors import UsageError
from esprof.replay.dfg import Cls, Dfg, Edge
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.graph import StageTime, schedule_graph
from esprof.replay.schedules.orders import held, orders
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, StagePass
from tests.cases.graph import reasons

_RATIOS = [(2, 2, 2), (2, 4, 2), (4, 2, 6), (6, 2, 2), (2, 2, 6)]
"""Forward, backward for inputs and backward for weights of a rank; even, so that half a rank's work is whole."""


def _idle(pipeline: PipelineShape, times: tuple[int, int, int]) -> int:
    """Idle time of a rank of equal stages without communication, in units of the rank's times."""
    # Times of a rank are divided among its stages: 12 has all numbers of stages that are tried as divisors.
    forward, inputs, weights = (12 * time // pipeline.chunks for time in times)
    stage = StageTime(forward_ns=forward, inputs_ns=inputs, weights_ns=weights)
    took = replay(schedule_graph(pipeline, [stage] * pipeline.stages)).step_ns()[0]
    return int(took) - 12 * pipeline.microbatches * sum(times)


@pytest.mark.parametrize("ranks", [4, 6, 8])
@pytest.mark.parametrize("times", _RATIOS)
def test_idle_time_is_that_of_the_closed_form(ranks: int, times: tuple[int, int, int]) -> None:
    forward, inputs, weights = times
    both = forward + inputs + weights
    for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B):
        assert _idle(PipelineShape(schedule, ranks, 2 * ranks), times) == 12 * (ranks - 1) * both
    for schedule, chunks in product((PipelineSchedule.INTERLEAVED, PipelineSchedule.LOOPED_BFS), (2, 3, 4)):
        assert _idle(PipelineShape(schedule, ranks, 2 * ranks, chunks), times) * chunks == 12 * (ranks - 1) * both
    longest = max(forward, inputs, forward + inputs - weights)
    for chunks in (1, 2, 3):
        idle = _idle(PipelineShape(PipelineSchedule.ZB1P, ranks, 4 * ranks, chunks), times)
        assert idle * chunks == 12 * (ranks - 1) * longest


@pytest.mark.parametrize("schedule", [PipelineSchedule.ZBV, PipelineSchedule.DUALPIPEV])
@pytest.mark.parametrize("ranks", [4, 6, 8])
def test_a_v_of_equal_passes_idles_for_half_a_forward_of_each_other_rank(
    schedule: PipelineSchedule, ranks: int
) -> None:
    assert _idle(PipelineShape(schedule, ranks, 4 * ranks, 2), (2, 2, 2)) == 12 * (ranks - 1)


def test_each_rank_holds_as_many_activations_as_the_closed_form_says() -> None:
    ranks, batches = 4, 16
    assert held(PipelineShape(PipelineSchedule.GPIPE, ranks, batches)) == [batches] * ranks
    assert held(PipelineShape(PipelineSchedule.LOOPED_BFS, ranks, batches, 2)) == [batches] * ranks
    assert held(PipelineShape(PipelineSchedule.ONE_F_ONE_B, ranks, batches)) == [4, 3, 2, 1]
    assert held(PipelineShape(PipelineSchedule.ONE_F_ONE_B, ranks, 2)) == [2, 2, 2, 1]
    assert held(PipelineShape(PipelineSchedule.INTERLEAVED, ranks, batches, 2)) == [
        4 + (3 - 2 * rank) / 2 for rank in range(4)
    ]
    assert held(PipelineShape(PipelineSchedule.ZB1P, ranks, batches)) == [ranks] * ranks
    assert max(held(PipelineShape(PipelineSchedule.ZBV, ranks, batches, 2))) == ranks
    assert max(held(PipelineShape(PipelineSchedule.DUALPIPEV, ranks, batches, 2))) == ranks + 0.5


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_each_stage_does_each_microbatch_once(schedule: PipelineSchedule) -> None:
    chunks = 1 if schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B) else 2
    pipeline = PipelineShape(schedule, 4, 8, chunks)
    everything = set(product(range(pipeline.stages), range(8)))
    tasks = [task for order in orders(pipeline) for task in order]
    for parts in (
        (StagePass.FORWARD,),
        (StagePass.BACKWARD, StagePass.INPUTS),
        (StagePass.BACKWARD, StagePass.WEIGHTS),
    ):
        found = [(task.stage, task.microbatch) for task in tasks if task.kind in parts]
        assert len(found) == len(everything)
        assert set(found) == everything


def _small(**times: int) -> Dfg:
    stage = StageTime(forward_ns=10, inputs_ns=10, weights_ns=10, **times)
    return schedule_graph(PipelineShape(PipelineSchedule.ONE_F_ONE_B, 2, 2), [stage, stage])


def test_a_stage_waits_for_the_transfer_of_its_input() -> None:
    dfg = _small(receive_ns=3)
    node = next(n for n in range(dfg.nodes) if dfg.label(n) == "F 0 of stage 1")
    assert reasons(dfg, node) == {"step begins": Edge.LANE, "F 0 of stage 0: sent": Edge.RENDEZVOUS}
    sent = [n for n in range(dfg.nodes) if dfg.label(n).endswith(": sent")]
    assert len(sent) == 4
    assert all(dfg.cls[n] == Cls.COMMUNICATION for n in sent)
    assert replay(dfg).step_ns()[0] == replay(_small()).step_ns()[0] + 2 * 3


def test_the_step_ends_after_the_all_reduce() -> None:
    # Stage 0 ends last, so the all-reduce of stage 1 is hidden.
    assert replay(_small(reduce_ns=7)).step_ns()[0] == replay(_small()).step_ns()[0] + 7


def test_numbers_that_a_schedule_does_not_allow_are_refused() -> None:
    with pytest.raises(UsageError, match=r"microbatches \(6\) must be a multiple of the ranks \(4\)"):
        orders(PipelineShape(PipelineSchedule.INTERLEAVED, 4, 6, 2))
    with pytest.raises(UsageError, match="at least 8 microbatches"):
        orders(PipelineShape(PipelineSchedule.ZBV, 4, 7, 2))
    with pytest.raises(UsageError, match="a rank has one stage, not 2"):
        orders(PipelineShape(PipelineSchedule.GPIPE, 4, 8, 2))
