"""Modules and their backward pass in the table of operations, in µs."""

import pytest

from esprof.analyzers.ops.over_ranks import Asked, ops_run
from tests.cases.graph import launched, numbered, op, python, run_of, step

NODE = "autograd::engine::evaluate_function: "


def by_name(rows, **asked):
    return {one.name: one for one in ops_run(run_of({0: rows}), Asked(**asked)).ops}


def model():
    """A model of two layers, whose numbers autograd gives to 7 and 8; a third number belongs to nothing recorded."""
    return [
        step(1, 0, 1_000),
        op("nn.Module: GPT", 0, 200),
        op("nn.Module: GPT.first", 10, 80),
        numbered("aten::linear", 20, 60, 7),
        numbered("aten::addmm", 30, 40, 7),
        op("nn.Module: GPT.second", 100, 90),
        numbered("aten::detach", 105, 5, 8),
        numbered("aten::relu", 120, 30, 8),
        numbered(f"{NODE}ReluBackward0", 300, 50, 8, 1),
        numbered("ReluBackward0", 310, 30, 8, 1),
        numbered(f"{NODE}AddmmBackward0", 400, 100, 7, 1),
        *launched("sgemm", 420, 600, 70, 1),
        numbered(f"{NODE}OtherBackward0", 520, 10, 3, 1),
    ]


def test_calls_that_the_recorder_marks_are_modules():
    found = by_name(model())
    assert found["GPT"].kind == found["GPT.first"].kind == "module"
    assert (found["GPT"].total_cpu_us, found["GPT"].own_cpu_us) == (200, 200 - 80 - 90)


def test_a_module_has_the_backward_pass_of_what_ran_in_it():
    found = by_name(model())
    assert {name: one.backward_cpu_us for name, one in found.items() if one.kind == "module"} == {
        "GPT": 150,
        "GPT.first": 100,
        "GPT.second": 50,
    }
    assert (found["GPT"].backward_gpu_us, found["GPT.second"].backward_gpu_us) == (70, 0)
    assert (found["aten::linear"].backward_cpu_us, found["aten::detach"].backward_cpu_us) == (100, 0)


def test_what_is_computed_again_inside_a_node_makes_nothing_of_the_forward_pass():
    again = [op("nn.Module: GPT.first", 430, 20), numbered("aten::linear", 435, 10, 8)]
    found = by_name([*model(), *again])
    assert (found["GPT.first"].calls, found["GPT.first"].total_cpu_us) == (2, 100)
    assert (found["GPT.first"].backward_cpu_us, found["GPT.second"].backward_cpu_us) == (100, 50)


def test_modules_alone_are_sorted_by_total_time():
    on_gpu = ops_run(run_of({0: model()}), Asked(by="module"))
    assert (on_gpu.sort, {one.kind for one in on_gpu.ops}, on_gpu.found) == ("total-gpu", {"module"}, 3)
    on_cpu = ops_run(
        run_of({0: [step(1, 0, 100), python("nn.Module: A_0", 0, 9), op("aten::mm", 20, 50)]}), Asked(by="module")
    )
    assert (on_cpu.sort, [one.name for one in on_cpu.ops]) == ("total-cpu", ["A_0"])


@pytest.mark.parametrize("rows", [[step(1, 0, 100), op("aten::mm", 20, 50)], model()[:3]])
def test_without_numbers_no_backward_pass_is_known(rows):
    assert all(one.backward_cpu_us == 0 for one in by_name(rows).values())
