"""Backward passes of recorded pipelines in two parts, worked by hand: of 2 ms, gradients are added up in 400 µs."""

import msgspec
import pytest

from esprof.replay.building.build import build
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineTask, StagePass
from esprof.replay.schedules.recorded import recorded_pipeline
from esprof.replay.whatif.pipeline.parts import as_wholes, in_parts
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import run_of
from tests.cases.layered import rows

_F, _B, _I, _W = StagePass.FORWARD, StagePass.BACKWARD, StagePass.INPUTS, StagePass.WEIGHTS


@pytest.fixture(scope="module")
def run():
    return run_of(rows())


@pytest.fixture(scope="module")
def pipeline(run):
    return recorded_pipeline(run, build(run))


def test_a_pass_is_divided_by_its_operations(run, pipeline):
    (before,), (step,) = pipeline.steps, in_parts(run, pipeline).steps
    whole = before.tasks_ns[PipelineTask(_B, 1, 0)]
    assert step.tasks_ns[PipelineTask(_W, 1, 0)] == pytest.approx(whole * 400 / 2000, rel=0.01)
    assert step.tasks_ns[PipelineTask(_I, 1, 0)] + step.tasks_ns[PipelineTask(_W, 1, 0)] == whole
    assert step.tasks_ns[PipelineTask(_F, 1, 0)] == before.tasks_ns[PipelineTask(_F, 1, 0)]
    assert step.receives_ns[PipelineTask(_I, 0, 1)] == before.receives_ns[PipelineTask(_B, 0, 1)]


def test_nobody_needs_the_gradient_of_what_enters_the_first_stage(run, pipeline):
    (before,), (step,) = pipeline.steps, in_parts(run, pipeline).steps
    assert step.tasks_ns[PipelineTask(_I, 0, 1)] == 0
    assert step.tasks_ns[PipelineTask(_W, 0, 1)] == before.tasks_ns[PipelineTask(_B, 0, 1)]


def test_parts_add_up_to_the_whole(run, pipeline):
    assert as_wholes(in_parts(run, pipeline)).steps == pipeline.steps


def test_the_zero_bubble_schedule_is_predicted(run):
    (answer,) = what_if(run, build(run), ["pipeline=zb1p"])
    assert answer.answered, answer.reason


def test_operations_that_compute_both_gradients_are_declined():
    made = rows()
    for of_rank in made.values():
        for at, row in enumerate(of_rank):
            of_rank[at] = msgspec.structs.replace(row, name=row.name.replace("aten::mm", "aten::convolution_backward"))
    (answer,) = what_if(run := run_of(made), build(run), ["pipeline=zb1p"])
    assert "inputs and of weights at once" in (answer.reason or "")


def test_only_known_schedules_are_predicted(run):
    (answer,) = what_if(run, build(run), [f"pipeline={PipelineSchedule.ZBV}"])
    assert "not known" in (answer.reason or "")
