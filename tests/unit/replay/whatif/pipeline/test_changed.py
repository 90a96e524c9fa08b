"""Recorded pipelines with other stages, other microbatches, or several stages on each rank."""

from statistics import mean

import pytest

from esprof.core.errors import UsageError
from esprof.replay.building.build import build
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineTask, StagePass
from esprof.replay.schedules.recorded import recorded_pipeline
from esprof.replay.whatif.pipeline.layers import stage_layers
from esprof.replay.whatif.pipeline.microbatches import Scaling, with_microbatches
from esprof.replay.whatif.pipeline.stages import Restaging, restaged
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import Row, run_of
from tests.cases.layered import rows

US = 1_000
_F, _B = StagePass.FORWARD, StagePass.BACKWARD


@pytest.fixture(scope="module")
def run():
    return run_of(rows())


@pytest.fixture(scope="module")
def pipeline(run):
    return recorded_pipeline(run, build(run))


@pytest.fixture(scope="module")
def layers(run, pipeline):
    return stage_layers(run, pipeline)


def about_us(value: float):
    """Passes have some gaps before and after them."""
    return pytest.approx(value * US, abs=110 * US)


def test_layers_have_the_times_of_their_calls_and_of_their_autograd_nodes(pipeline, layers):
    for place, one in enumerate(layers):
        assert one.times_ns[1, PipelineTask(_F, place, 1)] / US == pytest.approx([400, 400], abs=15)
        assert one.times_ns[1, PipelineTask(_B, place, 1)] / US == pytest.approx([800, 800], abs=15)
        assert len(set(one.kinds)) == 1
        assert (one.parameters.tolist(), one.all_parameters) == ([64, 64], 128)
        assert one.optimizer_ns == {1: 300 * US}


def test_a_moved_layer_takes_its_time_and_its_parameters_along(pipeline, layers):
    (step,) = restaged(pipeline, Restaging(pipeline.shape, layers, (1, 3))).steps
    (before,) = pipeline.steps
    took = {place: [step.tasks_ns[PipelineTask(kind, place, 1)] for kind in (_F, _B)] for place in (0, 1)}
    assert took == {0: [about_us(600), about_us(1200)], 1: [about_us(1400), about_us(2800)]}
    assert [now - then for now, then in zip(step.after_ns, before.after_ns, strict=True)] == [-150 * US, 150 * US]
    assert step.receives_ns == before.receives_ns


def test_a_further_stage_of_a_rank_adds_what_a_pass_takes_beside_its_layers(pipeline, layers):
    found = restaged(pipeline, Restaging(pipeline.shape, layers, (1, 1, 1, 1)))
    (step,), (before,) = found.steps, pipeline.steps
    assert (found.shape.schedule, found.shape.chunks) == (PipelineSchedule.INTERLEAVED, 2)
    for stage in range(4):
        assert step.tasks_ns[PipelineTask(_F, stage, 0)] == about_us(600)
        received = [ns for task, ns in before.receives_ns.items() if task.stage == stage % 2]
        assert step.receives_ns[PipelineTask(_B, stage, 1)] == mean(received)


def test_work_on_activations_and_messages_shrink_with_the_microbatches(run, pipeline):
    found = with_microbatches(pipeline, Scaling.of(run, pipeline), 4)
    (step,) = found.steps
    assert found.shape.microbatches == 4
    # Of a forward pass 390 of each layer's 400 shrink, of a backward pass 600 of 800.
    assert step.tasks_ns[PipelineTask(_F, 0, 3)] == about_us(1000 - 390)
    assert step.tasks_ns[PipelineTask(_B, 1, 0)] == about_us(2000 - 600)
    assert step.receives_ns[PipelineTask(_F, 1, 2)] == 200 * US


def test_changes_hold_together(run, pipeline, layers):
    same, fewer, both, other, all_three = what_if(
        run,
        build(run),
        [
            "stages=2+2,microbatches=2,pipeline=gpipe",
            "stages=1+3",
            "stages=1+3,microbatches=4",
            "pipeline=interleaved,stages=1+1+1+1",
            "stages=1+3,microbatches=4,pipeline=1f1b",
        ],
    )
    assert same.saving_us == pytest.approx(0, abs=50)
    assert fewer.saving_us < -500
    assert both.answered
    assert other.answered
    assert "activations of up to 1 microbatches, not of 2" in all_three.note


def without(names: tuple[str, ...] = (), *, shapes: bool = True) -> dict[int, list[Row]]:
    found = {rank: [row for row in of_rank if not row.name.startswith(names)] for rank, of_rank in rows().items()}
    for row in (row for of_rank in found.values() for row in of_rank):
        if not shapes and row.args is not None:
            row.args.dims = None
    return found


@pytest.mark.parametrize(
    ("made", "spec", "reason"),
    [
        (rows(), "stages=1+2", "3 layers together, the model has 4"),
        (rows(), "stages=1+1+2", "3 stages cannot be divided among 2 ranks"),
        (rows(), "pipeline=interleaved", "a rank has one stage"),
        (rows(), "pipeline=zb1p,stages=1+3", "leave out stages="),
        (rows(), "pipeline=zb1p,microbatches=4", "change one of them"),
        (rows(), "pipeline=looped-bfs", "not known"),
        (rows(), "stages=1+1+1+1,microbatches=3", "must be a multiple of the ranks"),
        (without(("nn.Module",)), "stages=1+3", "no list of modules"),
        (without(("autograd::engine::evaluate_function: Addmm",)), "stages=1+3", "backward pass of a layer"),
        (without(shapes=False), "stages=1+3", "--shapes"),
        (without(shapes=False), "microbatches=4", "--shapes"),
        (without(("torch::autograd::",)), "microbatches=4", "shapes of gradients"),
    ],
)
def test_what_the_run_does_not_tell_is_declined(made, spec, reason):
    (answer,) = what_if(run := run_of(made), build(run), [spec])
    assert reason in (answer.reason or "")


def test_a_layer_of_another_kind_moves_to_no_rank_without_one():
    made = rows()
    for row in made[0]:
        row.name = row.name.replace("aten::linear", "aten::conv2d")
    (answer,) = what_if(run := run_of(made), build(run), ["stages=1+3"])
    assert "no layer like number 1" in (answer.reason or "")


@pytest.mark.parametrize("spec", ["stages=4", "stages=0+4", "stages=a+b", "microbatches=0", "pipeline=fast"])
def test_what_is_no_value_is_a_usage_error(run, spec):
    with pytest.raises(UsageError):
        what_if(run, build(run), [spec])
