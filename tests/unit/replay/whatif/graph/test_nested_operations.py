"""`kernel[…]` on jobs that compute on CPUs, where the graph holds top-level operations alone."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import launched, op, predicted, run_of, step

MS = 1000.0


def linear():
    """A step of 100 ms: `aten::linear` takes 40, of which `aten::mm` 20, of which `aten::copy_` 5; `aten::relu` takes 60."""
    return [
        step(1, 0, 100 * MS),
        op("aten::linear", 0, 40 * MS),
        op("aten::mm", 10 * MS, 20 * MS),
        op("aten::copy_", 15 * MS, 5 * MS),
        op("aten::relu", 40 * MS, 60 * MS),
    ]


@pytest.mark.parametrize(
    ("name", "own_ms"),
    [
        ("aten::mm", 15),
        ("aten::copy_", 5),
        ("aten::linear", 20),
        ("aten::(mm|copy_)", 20),
        ("aten::(linear|copy_)", 25),
        ("aten::(linear|mm|copy_)", 40),
        ("aten::relu", 60),
        ("aten::", 100),
    ],
)
def test_only_the_time_that_an_operation_itself_takes_gets_shorter(name, own_ms):
    assert predicted(linear(), f"kernel[{name}]=2x") == [pytest.approx((100 - own_ms / 2) * MS, abs=1)]


def test_operations_of_another_thread_at_the_same_time_are_not_inside():
    rows = [*linear(), op("aten::addmm", 5 * MS, 30 * MS, tid=77)]
    assert predicted(rows, "kernel[^aten::mm]=2x", "kernel[addmm]=2x") == [
        pytest.approx((100 - 15 / 2) * MS, abs=1),
        100 * MS,
    ]


def test_an_operation_that_calls_itself_counts_once():
    rows = [step(1, 0, 40 * MS), op("aten::to", 0, 40 * MS), op("aten::to", 10 * MS, 20 * MS)]
    assert predicted(rows, "kernel[aten::to]=2x") == [pytest.approx(20 * MS, abs=1)]


@pytest.mark.parametrize(
    "more", [[], launched("gemm", 10, 20, 100, 1)], ids=["no such operation", "the job computes on GPUs"]
)
def test_without_matching_work_the_question_is_declined(more):
    run = run_of({0: [*linear(), *more]})
    (answer,) = what_if(run, build(run), ["kernel[aten::bmm|aten::mm_out]=2x" if not more else "kernel[aten::mm]=2x"])
    assert not answer.answered
    assert "kernel of that name" in (answer.reason or "")
