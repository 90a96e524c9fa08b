"""ESP706 to ESP708: models that are called again with the same inputs, gradients that no optimizer uses, and float64."""

import pytest

from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from esprof.run.raw.call_marks import DISCARDED, FLOAT64, NOT_HELD, NOT_OPTIMIZED, SAME_INPUTS, WEIGHTS_NOT_HELD
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, table
from tests.cases.graph import EPOCH_NS, call, launched, numbered, op, run_of, step

MS, STEP = 1_000.0, 100_000.0


def steps(*marks, only=range(6), inside=(), ranks=1, detached=False):
    """Six steps of 100 ms: `Teacher` is called for 20 ms, for 10 ms again, with these marks in the steps `only`, and
    `Student` for 10 ms. The backward pass takes 10 ms for the second call, and 50 ms for the rest, in which the first call
    has none if it is `detached`."""
    rows = []
    for n in range(6):
        at, number = STEP * n, 10 * n
        rows += [
            step(n, at, at + STEP),
            op(f"{MODULE_PREFIX}Teacher", at, 20 * MS),
            numbered("aten::linear", at, 20 * MS, number),
            op(f"{MODULE_PREFIX}Teacher", at + 20 * MS, 10 * MS),
            *(op(mark, at + 20 * MS, 10 * MS) for mark in marks if n in only),
            numbered("aten::linear", at + 20 * MS, 10 * MS, number + 1),
            *(op(name, at + 25 * MS, MS) for name in inside),
            op(f"{MODULE_PREFIX}Student", at + 30 * MS, 10 * MS),
            numbered("aten::linear", at + 30 * MS, 10 * MS, number + 2),
            numbered("AddmmBackward0", at + 40 * MS, 40 * MS, number + 2, forward_thread=1),
            numbered("AddmmBackward0", at + 80 * MS, 10 * MS, number + 1, forward_thread=1),
            numbered("AddmmBackward0", at + 90 * MS, 10 * MS, number if not detached else number + 2, forward_thread=1),
        ]
    return run_of(dict.fromkeys(range(ranks), rows))


def found(run):
    return {one.id: one for one in diagnose(run).findings if one.id in ("ESP706", "ESP707", "ESP708")}


def test_a_second_call_with_the_same_inputs_is_named_and_priced_with_its_backward_pass():
    finding = found(steps(SAME_INPUTS, ranks=2))["ESP706"]
    assert finding.what_if == "repeated_calls=0"
    assert finding.saving_us == pytest.approx(20 * MS, rel=0.01)
    assert finding.saving_low_us >= 0.5 * finding.saving_us
    assert (finding.evidence["module"].value, finding.evidence["calls_per_step_and_rank"].value) == ("Teacher", 1)
    assert finding.title == "Teacher is called again with the same inputs, which takes up to 20.0 ms of a step"


def test_the_backward_pass_of_a_call_after_one_without_is_needed():
    finding = found(steps(SAME_INPUTS, detached=True))["ESP706"]
    assert finding.saving_us == pytest.approx(10 * MS, rel=0.01)
    assert finding.evidence["per_step"].value == {"0": 10 * MS * 1e3}


def test_a_call_within_another_repeated_one_is_not_counted_again():
    finding = found(steps(SAME_INPUTS, inside=[SAME_INPUTS, f"{MODULE_PREFIX}Teacher.deep", SAME_INPUTS]))["ESP706"]
    assert (finding.evidence["module"].value, finding.evidence["calls_per_step_and_rank"].value) == ("Teacher", 1)


def test_of_several_repeated_parts_the_one_that_takes_longest_is_named():
    rows = []
    for n in range(6):
        at = STEP * n
        rows.append(step(n, at, at + STEP))
        for name, begin, long in (("stem", 0, 10), ("stem", 10, 10), ("deep", 20, 30)):
            rows += [
                op(f"{MODULE_PREFIX}Net.{name}", at + begin * MS, long * MS),
                op(SAME_INPUTS, at + begin * MS, long * MS),
            ]
            rows.append(op("aten::linear", at + begin * MS, long * MS))
    finding = found(run_of({0: rows}))["ESP706"]
    assert finding.title == "Net.deep and 1 more are called again with the same inputs, which takes 50.0 ms of a step"


MAIN = "train.py(9): main"
CALL = "python3.11/site-packages/torch/nn/modules/module.py(7): Module._call_impl"


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        ("model.py(3): Net.forward", "model.py(5): Net.forward", "model.py(5): Net.forward"),
        (
            "model.py(3): Net.forward\nmodel.py(20): Net.encode",
            "model.py(5): Net.forward\nmodel.py(20): Net.encode",
            "model.py(5): Net.forward",
        ),
        ("model.py(3): Net.forward", "model.py(3): Net.forward", "model.py(3): Net.forward"),
    ],
)
def test_the_line_that_makes_the_second_call_is_named(first, second, line):
    rows, samples = [], []
    for n in range(6):
        at = STEP * n
        rows += [step(n, at, at + STEP), op(f"{MODULE_PREFIX}Net", at, 90 * MS), op("aten::linear", at, 90 * MS)]
        rows += [op(f"{MODULE_PREFIX}Net.stem", at + begin * MS, 30 * MS) for begin in (10, 50)]
        rows.append(op(SAME_INPUTS, at + 50 * MS, 30 * MS))
        for begin, caller in ((20, first), (60, second)):
            stack = "\n".join((MAIN, CALL, CALL, caller, CALL, "layers.py(1): Stem.forward"))
            samples.append((EPOCH_NS + int(1000 * (at + begin * MS)), 10**7, 0, n, stack))
    run = run_of({0: rows})
    of_samples = table(dict(zip(SAMPLES.names, zip(*samples, strict=True), strict=True)), SAMPLES)
    sampled = Run(run.meta, lambda name, rank: of_samples if name == "samples" else run.recorded(name, rank))
    assert found(sampled)["ESP706"].evidence["source_line"].value == line


def test_a_backward_pass_that_no_optimizer_needs_is_named_and_priced():
    finding = found(steps(NOT_OPTIMIZED))["ESP707"]
    assert finding.what_if == "unused_gradients=0"
    assert finding.saving_us == pytest.approx(10 * MS, rel=0.01)
    assert finding.title == "Gradients of Teacher, which no optimizer changes, take 10.0 ms of a step"


def test_a_backward_pass_whose_gradients_are_discarded_is_named_and_priced():
    finding = found(steps(DISCARDED, ranks=2))["ESP707"]
    assert finding.saving_us == pytest.approx(10 * MS, rel=0.01)
    assert "which are discarded before its optimizer steps, take up to 10.0 ms" in finding.title
    assert "detach()" in finding.advice


def test_modules_that_compute_in_float64_are_named_and_priced_at_half_their_time():
    finding = found(steps(FLOAT64, ranks=2))["ESP708"]
    assert finding.what_if == "double_precision=2x"
    assert finding.saving_us == pytest.approx(10 * MS, rel=0.01)
    assert finding.title == "Some modules compute in float64 for up to 20.0 ms of a step, as Teacher"


def test_half_the_backward_pass_of_layers_between_others_that_learn_is_priced():
    finding = found(steps(WEIGHTS_NOT_HELD))["ESP707"]
    assert finding.saving_us == pytest.approx(5 * MS, rel=0.01)
    assert finding.title == (
        "No optimizer holds the parameters of Teacher and others in its model; their gradients take 5.00 ms of a step"
    )
    whole = found(steps(NOT_HELD))["ESP707"]
    assert whole.saving_us == pytest.approx(10 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("marks", "how"),
    [
        ((), {}),  # two views of a batch, or two halves of it
        ((SAME_INPUTS,), {"inside": ["aten::native_dropout"]}),  # another sample of the model
        ((SAME_INPUTS,), {"inside": ["aten::bernoulli_"]}),
        ((NOT_OPTIMIZED,), {"only": [0, 1]}),  # before its optimizer has stepped
        ((DISCARDED,), {"only": [0, 1]}),
    ],
)
def test_other_calls_are_needed(marks, how):
    assert found(steps(*marks, **how)) == {}


def test_a_call_in_eval_mode_has_the_operation_of_dropout_but_draws_nothing():
    assert "ESP706" in found(steps(SAME_INPUTS, inside=["aten::dropout"]))


def test_gpu_work_of_the_second_call_is_removed():
    rows, long = [], 91.3 * MS
    for n in range(6):
        at, number = long * n, 100 * n
        rows += [step(n, at, at + long), op(SAME_INPUTS, at + MS, MS)]
        rows += launched("first", at + 100, at + 200, 30 * MS, number + 1)
        rows += launched("second", at + 1.1 * MS, at + 30.2 * MS, 20 * MS, number + 2)
        rows += launched("rest", at + 4 * MS, at + 50.2 * MS, 40 * MS, number + 3)
        rows.append(call("cudaDeviceSynchronize", at + 7 * MS, 84.2 * MS, number + 4))
    run = run_of({0: rows})
    (answer,) = what_if(run, build(run), ["repeated_calls=0"])
    assert answer.saving_us == pytest.approx(20 * MS, rel=0.05)


@pytest.mark.parametrize("spec", ["repeated_calls=0", "unused_gradients=0", "double_precision=2x"])
def test_a_run_without_such_calls_declines(spec):
    run = steps()
    (answer,) = what_if(run, build(run), [spec])
    assert not answer.answered
    assert answer.reason is not None
    assert "was recorded" in answer.reason
