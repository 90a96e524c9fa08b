"""What-ifs whose gain lies before the steady-state steps."""

import pytest

from esprof.replay import Replayed, answer
from tests.cases.graph import call, launched, op, run_of, step


def behind_an_allocation() -> list:
    """Three steps: an allocation of 6 ms during a kernel of 8 ms; a wait for that kernel; almost no work."""
    return [
        step(1, 0, 7_000),
        op("aten::mm", 10, 30),
        *launched("gemm", 20, 30, 8_000, 1),
        op("aten::empty", 100, 6_050),
        call("cudaMalloc", 110, 6_000, 2),
        step(2, 7_000, 9_000),
        op("aten::item", 7_100, 940),
        call("cudaStreamSynchronize", 7_110, 920, 3),
        op("aten::add", 8_050, 900),
        step(3, 9_000, 11_000),
        op("aten::add", 9_050, 1_900),
    ]


@pytest.mark.parametrize("spec", ["allocator=0", "rank0.allocator=0"])
def test_a_gain_before_the_steady_state_steps_makes_them_no_longer(spec):
    found = answer(Replayed.of(run_of({0: behind_an_allocation()}), max_error_pct=100), [spec, f"{spec},gpu=1x"])
    assert [left.step for left in found.left_out] == [1]
    assert [outcome.saving_us for outcome in found.what_if] == [0, 0]
    assert all("before the steady-state steps" in (outcome.note or "") for outcome in found.what_if)


def test_longer_work_still_takes_longer_with_fewer_waits():
    found = answer(Replayed.of(run_of({0: behind_an_allocation()}), max_error_pct=100), ["allocator=0,cpu=0.5x"])
    assert found.what_if[0].saving_us < 0
