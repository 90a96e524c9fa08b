"""Traces without GPU work, launches, or members of collectives."""

import pytest

from esprof.replay.building.build import build, build_counted
from esprof.replay.engine.timeline import replay
from tests.cases.graph import call, op, run_of, step


@pytest.mark.parametrize(
    "name", ["cudaStreamWaitEvent", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaFree", "hipStreamWaitEvent"]
)
def test_a_rank_without_gpu_work_may_call_the_runtime(name):
    run = run_of({0: [step(1, 0, 1000), op("aten::mm", 10, 200), call(name, 300, 100, 1), op("aten::add", 500, 100)]})
    assert replay(build(run)).step_ns().tolist() == [1_000_000]
    assert build_counted(run).counts.kernels == 0
