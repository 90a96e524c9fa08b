"""ESP408: storms of small kernels."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.findings import ungrouped
from tests.cases.graph import call, kernel, launched, op, run_of, step

STEP = 10_000.0


def steps(*, storm: int = 50, gpu_us: float = 8) -> list:
    """Steps of a large kernel, then `storm` operations of 100 µs that launch a kernel of `gpu_us` each."""
    rows = []
    for n in range(5):
        at, number = STEP * n, 1000 * n
        rows += [
            step(n, at, at + STEP),
            op("aten::mm", at, 100),
            *launched("gemm", at + 50, at + 60, 2_000, number + 800),
        ]
        for m in range(storm):
            begin, one = at + 100 + 100 * m, number + m + 1
            rows += [
                op("aten::add_", begin, 95),
                *launched("add", begin + 50, max(begin + 60, at + 2_070), gpu_us, one),
            ]
        rows += [op("aten::item", at + 9_000, 900), call("cudaStreamSynchronize", at + 9_010, 880, number + 900)]
    return rows


def waiting(every: int) -> list:
    """Steps of 48 operations of 100 µs; after every so many of them the CPU waits 300 µs for the last kernel."""
    rows, at = [], 0.0
    for n in range(5):
        begin = at
        for m in range(48):
            is_last = m % every == every - 1
            number = 1000 * n + 2 * m + 1
            rows += [op("aten::add_", at, 95), *launched("add", at + 50, at + 60, 335 if is_last else 8, number)]
            at += 100
            if is_last:
                rows += [op("aten::item", at, 300), call("cudaStreamSynchronize", at + 5, 295, number + 1)]
                at += 300
        rows.append(step(n, begin, at))
    return rows


def found(rows: list, id: str = "ESP408"):
    return next((one for one in ungrouped(run_of({0: rows})) if one.id == id), None)


def test_a_storm_is_counted_placed_and_priced():
    finding = found(steps())
    assert finding.title == "50 of 51 kernels a step take less time than their launch, 50 of them in aten::add_"
    assert finding.evidence["median_small_kernel"].value == 8_000
    assert finding.evidence["median_time_to_launch_one"].value == 95_000
    assert finding.evidence["gpu_time_of_small_kernels"].value == {"0": 400_000}
    assert finding.is_bound


def test_kernels_that_take_longer_than_their_launch_are_no_storm():
    assert found(steps(gpu_us=120)) is None


def test_short_runs_are_no_storm():
    assert found(steps(storm=8)) is None


def graph(name: str) -> list:
    """A storm that something else has already spared most of: all its kernels belong to graphs or have this name."""
    rows = []
    for n in range(5):
        at, number = STEP * n, 1000 * n
        rows += [step(n, at, at + STEP)]
        if name == "graph":
            rows += [op("replay", at, 9_000), call("cudaGraphLaunch", at + 8_000, 100, number)]
            rows += [kernel("add", at + 8_110 + 9 * m, 8, number) for m in range(50)]
        for m in range(50):
            begin = at + 100 * m
            rows += [op("aten::add_", begin, 95), *launched(name, begin + 50, begin + 60, 8, number + m + 1)]
    return rows


@pytest.mark.parametrize("name", ["graph", "triton_poi_fused_add_0"])
def test_graphed_and_compiled_steps_are_left_to_esp401(name):
    assert found(graph(name)) is None
    assert found(graph("add")) is not None


def saved_us(rows: list) -> float | None:
    run = run_of({0: rows})
    return what_if(run, build(run), ["launches=graph"])[0].saving_us


def test_a_graph_ends_where_the_cpu_waits():
    # The CPU takes no time between the launches of a run; each wait begins another run.
    assert saved_us(graph("add")) == pytest.approx(49 * 100, rel=0.05)
    assert saved_us(waiting(every=4)) is None
    # Each of four waits leaves one operation before it and one after it.
    assert saved_us(waiting(every=12)) == pytest.approx(4 * 11 * 100, rel=0.1)


def test_kernels_of_a_graph_follow_each_other_without_a_pause():
    # 50 kernels of 8 µs, launched while a large one runs: each starts 4 µs after the one before ends.
    rows = []
    for n in range(5):
        at, number = STEP * n, 1000 * n
        rows += [
            step(n, at, at + STEP),
            op("aten::mm", at, 100),
            *launched("gemm", at + 50, at + 60, 9_000, number + 800),
        ]
        for m in range(50):
            begin = at + 100 + 100 * m
            rows += [op("aten::add_", begin, 95), *launched("add", begin + 50, at + 9_064 + 12 * m, 8, number + m + 1)]
        rows += [op("aten::item", at + 5_200, 4_700), call("cudaStreamSynchronize", at + 5_210, 4_453, number + 900)]
    assert saved_us(rows) == pytest.approx(49 * 4, abs=10)
