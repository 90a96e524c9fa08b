"""The peak of a rank of a pipeline under another schedule, worked by hand: GPipe, two stages, two microbatches.

A forward pass takes 1 ms and keeps 100 bytes, a backward pass 2 ms. The first rank makes both forward passes before the
first backward pass under any schedule; the last one keeps one microbatch less under 1F1B.
"""

import numpy as np
import pytest

from esprof.core.types import Rank
from esprof.replay.schedules.pipeline import PipelineSchedule
from esprof.replay.whatif.memory.blocks import NEVER, MemoryBlocks, RankBlocks, Use
from esprof.replay.whatif.memory.passes import BackwardPasses
from esprof.replay.whatif.memory.peak import peak_memory
from esprof.replay.whatif.memory.reordered import with_schedule
from esprof.replay.whatif.scenario import Declined
from tests.cases.graph import EPOCH_NS, op, run_of, step
from tests.cases.messages import marked


def rows(stage: int):
    passes = [("F0", 1000, 1000), ("F1", 2000, 1000), ("B0", 3000, 2000), ("B1", 5000, 2000)]
    marks = [marked(f"PP:{stage}{name}", start, took) for name, start, took in passes]
    return [step(1, 0, 8000), *marks, op("aten::mm", 1000, 10)]


def memory(rank: Rank):
    """What the forward pass of each microbatch keeps until its backward pass, and 10 bytes beside the passes."""
    blocks = [(1500, 4000, 100), (2500, 6000, 100), (500, 7500, 10)]
    begin, end, size = (np.array(column) for column in zip(*blocks, strict=True))
    use, grows = np.full(3, Use.ACTIVATION, np.int8), np.zeros(3, bool)
    return RankBlocks(
        rank=rank,
        on_gpu=False,
        blocks=MemoryBlocks(EPOCH_NS + 1000 * begin, EPOCH_NS + 1000 * end, size, use, grows),
        passes=BackwardPasses(np.zeros(0), np.zeros(0), np.zeros(0)),
        span_ns=(EPOCH_NS, EPOCH_NS + 8_000_000),
        parameters=1000,
        gradients=0,
        buffers=0,
        optimizer=0,
        buckets=0,
        other=0,
    )


@pytest.fixture
def run():
    return run_of({0: rows(0), 1: rows(1)})


@pytest.mark.parametrize(("rank", "expected"), [(0, 1210), (1, 1110)])
def test_a_rank_holds_what_its_order_of_passes_keeps(run, rank, expected):
    assert peak_memory(memory(rank), None).peak == 1210
    changed = with_schedule(run, memory(rank), PipelineSchedule.ONE_F_ONE_B)
    assert peak_memory(changed, None).peak == expected


def test_what_is_made_in_a_pass_moves_with_it(run):
    """On the last rank the second forward pass takes place after the first backward pass."""
    blocks = with_schedule(run, memory(1), PipelineSchedule.ONE_F_ONE_B).blocks
    assert ((blocks.begin_ns - EPOCH_NS) // 1000).tolist() == [1500, 4500, 500]
    assert ((blocks.end_ns - EPOCH_NS) // 1000).tolist() == [3000, 6000, 7500]


def test_the_recorded_schedule_changes_nothing(run):
    same, before = with_schedule(run, memory(1), PipelineSchedule.GPIPE).blocks, memory(1).blocks
    assert same.begin_ns.tolist() == before.begin_ns.tolist()
    assert same.end_ns.tolist() == before.end_ns.tolist()


def test_what_is_never_freed_stays(run):
    kept = memory(1)
    kept.blocks.end_ns[1] = NEVER
    assert with_schedule(run, kept, PipelineSchedule.ONE_F_ONE_B).blocks.end_ns[1] == NEVER


@pytest.mark.parametrize(
    ("schedule", "reason"), [("zb1p", "in other parts"), ("zbv", "two stages, not 1"), ("dualpipev", "two stages")]
)
def test_other_schedules_are_declined(run, schedule, reason):
    with pytest.raises(Declined, match=reason):
        with_schedule(run, memory(0), PipelineSchedule(schedule))


def test_a_job_without_a_pipeline_is_declined():
    made = {rank: [row for row in rows(rank) if not row.name.startswith("PP:")] for rank in (0, 1)}
    with pytest.raises(Declined, match="does not mark the passes"):
        with_schedule(run_of(made), memory(0), PipelineSchedule.GPIPE)
