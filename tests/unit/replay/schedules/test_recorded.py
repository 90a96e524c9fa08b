"""Pipelines of recorded runs: their schedule, the times of their passes, and their steps under another schedule."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass
from esprof.replay.schedules.recorded import NoPipeline, RecordedPipeline, recorded_pipeline
from esprof.replay.whatif.pricing import what_if
from esprof.run.run import Run
from tests.cases.graph import Row, op, run_of, step
from tests.cases.messages import marked, message

US = 1_000


def a_pass(name: str, start: float, end: float) -> list[Row]:
    return [marked(f"PP:{name}", start, end - start), op("aten::mm", start, end - start)]


def gpipe() -> dict[int, list[Row]]:
    """Two stages, two microbatches: forward passes take 1 ms, backward passes 2 ms, messages 400 µs."""
    first = [
        *a_pass("0F0", 1000, 2000),
        *message("send", 1, 2000, 2036),
        *a_pass("0F1", 2050, 3050),
        *message("send", 1, 3050, 3890),
        *message("recv", 1, 3900, 7100),
        *a_pass("0B0", 7100, 9100),
        *message("recv", 1, 9100, 9520),
        *a_pass("0B1", 9520, 11520),
    ]
    second = [
        *message("recv", 0, 500, 2420),
        *a_pass("1F0", 2420, 3420),
        *message("recv", 0, 3420, 3840),
        *a_pass("1F1", 3840, 4840),
        *a_pass("1B0", 4840, 6680),
        *message("send", 0, 6680, 6720),
        *a_pass("1B1", 6730, 8730),
        *message("send", 0, 8730, 9140),
    ]
    return {rank: [step(1, 0, 11600), op("aten::zero_", 0, 400), *rows] for rank, rows in enumerate((first, second))}


def renamed(rows: dict[int, list[Row]], names: dict[str, str]) -> Run:
    for row in (row for of_rank in rows.values() for row in of_rank):
        row.name = names.get(row.name, row.name)
    return run_of(rows)


def of(run: Run) -> RecordedPipeline:
    return recorded_pipeline(run, build(run))


def zero_bubble() -> dict[int, list[Row]]:
    """The same pipeline under ZB1P: the last stage needs 1.2 ms for gradients of inputs and 800 µs for those of weights."""
    first = [
        *a_pass("0F0", 1000, 2000),
        *message("send", 1, 2000, 2036),
        *a_pass("0F1", 2050, 3050),
        *message("send", 1, 3050, 3840),
        *message("recv", 1, 3900, 5460),
        *a_pass("0I0", 5460, 5480),
        *a_pass("0W0", 5480, 7480),
        *message("recv", 1, 7480, 7900),
        *a_pass("0I1", 7900, 7920),
        *a_pass("0W1", 7920, 9920),
    ]
    second = [
        *message("recv", 0, 500, 2420),
        *a_pass("1F0", 2420, 3420),
        *message("recv", 0, 3420, 3840),
        *a_pass("1I0", 3840, 5040),
        *message("send", 0, 5040, 5080),
        *a_pass("1F1", 5090, 6090),
        *a_pass("1I1", 6090, 7290),
        *message("send", 0, 7290, 7330),
        *a_pass("1W0", 7340, 8140),
        *a_pass("1W1", 8140, 8940),
    ]
    return {rank: [step(1, 0, 10000), op("aten::zero_", 0, 400), *rows] for rank, rows in enumerate((first, second))}


def test_passes_that_were_computed_in_parts_tell_those_of_whole_ones():
    run = run_of(zero_bubble())
    found = of(run)
    assert found.shape == PipelineShape(PipelineSchedule.ZB1P, 2, 2)
    (only,) = found.steps
    assert only.tasks_ns[PipelineTask(StagePass.WEIGHTS, 1, 1)] == pytest.approx(800 * US, rel=0.05)
    assert PipelineTask(StagePass.INPUTS, 0, 1) in only.receives_ns
    same, other, staged = what_if(run, build(run), ["pipeline=zb1p", "pipeline=1f1b", "stages=1+1"])
    assert same.saving_us == pytest.approx(0, abs=20)
    assert other.answered
    assert "leave out stages=" in (staged.reason or "")


def test_schedule_and_times_are_those_that_were_recorded():
    found = of(run_of(gpipe()))
    assert found.shape == PipelineShape(PipelineSchedule.GPIPE, 2, 2)
    assert found.ranks == (0, 1)
    (only,) = found.steps
    assert only.tasks_ns[PipelineTask(StagePass.BACKWARD, 0, 1)] == pytest.approx(2000 * US, rel=0.05)
    assert only.receives_ns[PipelineTask(StagePass.FORWARD, 1, 0)] == 400 * US
    assert set(only.receives_ns) == {
        PipelineTask(kind, stage, batch)
        for kind, stage in ((StagePass.FORWARD, 1), (StagePass.BACKWARD, 0))
        for batch in (0, 1)
    }


def test_the_recorded_schedule_takes_as_long_as_recorded():
    run = run_of(gpipe())
    dfg = build(run)
    assert replay(recorded_pipeline(run, dfg).graph()).step_ns() == pytest.approx(replay(dfg).step_ns(), rel=0.05)


def test_another_schedule_is_predicted_from_the_same_passes():
    run = run_of(gpipe())
    same, other, faster = what_if(run, build(run), ["pipeline=gpipe", "pipeline=1f1b", "pipeline=1f1b,cpu=2x"])
    assert same.saving_us == pytest.approx(0, abs=20)
    assert other.answered
    assert "activations of up to 2 microbatches" not in (same.note or "")
    assert faster.predicted_us < 0.7 * other.predicted_us


def test_places_follow_stages_not_ranks():
    rows = gpipe()
    swapped = {1: rows[0], 0: rows[1]}
    for row in (row for of_rank in swapped.values() for row in of_rank):
        row.name = row.name.replace("send 1", "send X").replace("send 0", "send 1").replace("send X", "send 0")
        row.name = row.name.replace("recv 1", "recv X").replace("recv 0", "recv 1").replace("recv X", "recv 0")
    assert of(run_of(swapped)).ranks == (1, 0)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({f"PP:1{one}": "mine" for one in ("F0", "F1", "B0", "B1")}, "does not mark the passes"),
        ({"PP:1F1": "PP:3F1"}, "in turn"),
        ({f"PP:1{one}": f"PP:0{one}" for one in ("F0", "F1", "B0", "B1")}, "share a stage"),
        ({"PP:1F0": "PP:1F1", "PP:1F1": "PP:1F0"}, "none of the schedules gpipe, 1f1b, interleaved, zb1p"),
    ],
)
def test_what_is_no_known_pipeline_is_declined(names: dict[str, str], reason: str):
    with pytest.raises(NoPipeline, match=reason):
        of(renamed(gpipe(), names))
    (answer,) = what_if(run := renamed(gpipe(), names), build(run), ["pipeline=1f1b"])
    assert reason in (answer.reason or "")


def test_a_message_too_few_is_declined():
    rows = gpipe()
    rows[0] = [row for row in rows[0] if row.ts < 9100 or row.name.startswith(("PP:", "aten::"))]
    with pytest.raises(NoPipeline, match="messages for 2 passes"):
        of(run_of(rows))
