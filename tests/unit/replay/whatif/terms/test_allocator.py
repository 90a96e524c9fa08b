"""`allocator=0`: which waits go with the calls of the allocator, and which stay."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import call, gloo, launched, op, run_of, step


def test_a_wait_for_a_collective_right_before_an_allocator_call_stays():
    rows = [
        step(1, 0, 9000),
        *launched("gemm", 10, 20, 50, 1),
        op("aten::mm", 0, 1000),
        *gloo(1000, 1010, 6010),  # it ends as memory is asked for
        call("cudaMalloc", 6010, 990, 2),
        op("aten::add", 7000, 2000),
    ]
    run = run_of({0: rows, 1: rows})
    (answer,) = what_if(run, build(run), ["allocator=0"])
    assert answer.predicted_us == pytest.approx(9000 - 990, abs=25)
