"""GPU work whose launch was not recorded, in the table of operations."""

from esprof.analyzers.ops.over_ranks import Asked, ops_run
from tests.cases.graph import kernel, launched, op, run_of, step


def kernels(rows):
    return {one.name: one.calls for one in ops_run(run_of({0: rows}), Asked()).ops if one.kind == "kernel"}


def test_work_without_a_launch_within_the_window_is_a_row():
    rows = [step(1, 0, 1000), op("aten::mm", 0, 100), *launched("gemm", 10, 20, 100, 1), kernel("lost", 200, 50, 99)]
    assert kernels(rows) == {"lost": 1}


def test_work_launched_before_the_steps_belongs_to_earlier_steps():
    rows = [step(1, 0, 1000), op("aten::mm", 0, 100), kernel("earlier", 10, 50, 99), *launched("gemm", 10, 70, 100, 1)]
    assert kernels(rows) == {}
