"""ESP401 and ESP407: titles and advice that fit the job, and first calls of kernels."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.findings import ungrouped
from tests.cases.graph import call, kernel, launched, op, run_of, step

STEP = 10_000.0


def steps(
    first_ms: float = 0.0, *, count: int = 3, gpu_us: float = 20, made_by: str = "aten::add", name: str = "add"
) -> list:
    """Steps of 50 operations, each of 150 µs with the launch of a kernel that takes `gpu_us`, and 50 µs of nothing.

    The first launch of the first step takes `first_ms` longer.
    """
    rows, at, number = [], 0.0, 0
    for n in range(count):
        begin = at
        for m in range(50):
            more = 1000 * first_ms if n == m == 0 else 0.0
            number += 1
            rows += [op(made_by, at, 150 + more), call("cudaLaunchKernel", at + 100, 5 + more, number)]
            rows.append(kernel(name, at + 110 + more, gpu_us, number))
            at += 200 + more
        rows.append(step(n, begin, at))
    return rows


def graphed(outside: int) -> list:
    """Steps of a graph of 40 kernels, and `outside` kernels that are launched one by one."""
    rows = []
    for n in range(5):
        at, number = STEP * n, 100 * n
        rows += [step(n, at, at + STEP), op("replay", at, 300), call("cudaGraphLaunch", at + 100, 100, number)]
        rows += [kernel("k", at + 210 + 10 * m, 9, number) for m in range(40)]
        for m in range(outside):
            begin = at + 1_000 + 200 * m
            rows += [op("aten::add", begin, 190), *launched("add", begin + 100, begin + 110, 10, number + m + 1)]
    return rows


def found(rows: list, id: str = "ESP401"):
    """What the rule finds alone, unless its saving may be nothing."""
    return next(
        (one for one in ungrouped(run_of({0: rows})) if one.id == id and (one.is_saving or not one.saving_us)), None
    )


def test_without_graphs_and_compilation_both_are_advised():
    finding = found(steps())
    assert finding.title.startswith("The CPU limits the step: a GPU waits for kernel launches for up to 90 %")
    assert "torch.compile" in finding.advice
    assert "CUDA graphs" in finding.advice
    assert "made_by_compile" not in finding.evidence


@pytest.mark.parametrize(
    ("made_by", "name", "share"),
    [("Torch-Compiled Region: 0/1", "add", 0), ("aten::add", "triton_poi_fused_add_0", 1)],
)
def test_a_compiled_job_is_not_told_to_compile(made_by, name, share):
    finding = found(steps(made_by=made_by, name=name))
    assert finding.evidence["made_by_compile"].value == share
    assert f"torch.compile is used already and made {100 * share} % of the kernels" in finding.advice
    assert "Fuse kernels" not in finding.advice


def test_a_graphed_job_is_not_told_to_use_graphs():
    finding = found(graphed(outside=40))
    assert finding.evidence["launched_by_graphs"].value == pytest.approx(0.5)
    assert "CUDA graphs launch 50 % of the kernels already" in finding.advice
    assert "torch.compile" not in finding.advice


def test_a_gpu_that_waits_little_is_not_called_limited_by_its_cpu():
    # It waits for 10 µs of 200.
    assert found(steps(gpu_us=190, count=5)) is None
    idle = found(steps(gpu_us=170, count=5))
    assert idle.title == "A GPU waits for kernel launches for up to 15 % of the step"


def test_first_calls_are_reported_as_such_and_not_as_work_of_the_cpu():
    finding = found(steps(first_ms=300), "ESP407")
    assert finding.title == "First calls of kernels take 300.0 ms in step 0; later steps do not have this time"
    assert finding.evidence["first_calls"].value == 1
    assert finding.saving_us == 0
    run = run_of({0: steps(first_ms=300)})
    usual, with_first = (what_if(one, build(one), ["host=2x"])[0].saving_us for one in (run_of({0: steps()}), run))
    assert with_first == pytest.approx(usual, rel=0.05)


def test_launches_that_are_always_long_are_no_first_calls():
    assert found(steps(), "ESP407") is None
    assert found(steps(first_ms=0.5), "ESP407") is None
    # The second step of the window has a long launch: a pause.
    late = steps(count=2)
    (again,) = [row for row in late if row.name == "cudaLaunchKernel" and row.ts == STEP + 100]
    again.dur = 3_000
    assert found(late, "ESP407") is None
