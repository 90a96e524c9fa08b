"""GPU work that was launched before the window and that the profiler did not record."""

import pytest

from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.building.node_names import TEXTS, Text
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import replay, strict
from tests.cases.graph import Row, call, kernel, launched, node, nodes_of, op, predicted, reasons, run_of, step

US = 1_000
CUT = TEXTS[Text.CUT_WORK]


def cut_work(dfg: Dfg) -> list[tuple[int, int]]:
    """(start, end) of the work that was cut away, µs after the window's begin."""
    nodes = nodes_of(dfg, CUT)
    assert all(dfg.cls[n] == Cls.COMPUTE and dfg.event[n] == -1 for n in nodes)
    return [(int(dfg.recorded_ns[n]) // US, int(dfg.recorded_ns[n] + dfg.dur_ns[n]) // US) for n in nodes]


def behind(busy: float = 5000.0) -> list[Row]:
    """A kernel launched at 50 starts at `busy`, when older work is done; the thread waits for it and continues."""
    return [
        op("aten::mm", 0, 100),
        *launched("gemm", 50, busy, 1000, 1),
        call("cudaStreamSynchronize", 120, busy + 900, 2),
        op("aten::item", busy + 1020, 80),
    ]


def test_the_first_kernel_waits_for_work_from_before_the_window():
    dfg = build(run_of({0: behind()}))
    assert cut_work(dfg) == [(0, 5000)]
    assert CUT in reasons(dfg, node(dfg, "gemm"))
    assert not dfg.residual_ns.any()
    assert replay(strict(dfg)).step_ns().tolist() == [6100 * US]


def test_work_from_before_the_window_is_the_gpus_time_and_not_the_hosts():
    diagnosis = diagnose(run_of({0: behind()}))
    (rank,) = diagnosis.breakdown
    assert rank.compute == 6000
    assert diagnosis.explained_pct == 100
    assert "ESP401" not in {finding.id for finding in diagnosis.findings}


def test_a_faster_gpu_does_that_work_faster_too():
    (faster,) = predicted(behind(), "gpu=2x")
    assert faster == pytest.approx(3100, abs=30)


def test_a_kernel_that_starts_soon_after_its_launch_found_the_gpu_idle():
    assert not cut_work(build(run_of({0: behind(120.0)})))


def test_a_launch_that_takes_long_itself_does_not_wait_for_older_work():
    # The first call of a kernel loads it, and the kernel starts before the call returns.
    rows = [op("aten::mm", 0, 5100), call("cudaLaunchKernel", 50, 5010, 1), kernel("gemm", 5050, 1000, 1)]
    assert not cut_work(build(run_of({0: rows})))


def test_a_blocking_copy_waits_for_older_work():
    rows = [
        op("aten::item", 0, 5100),
        call("cudaMemcpyAsync", 50, 5000, 1),
        kernel("Memcpy DtoH (Device -> Pageable)", 5020, 5, 1),
        op("aten::mm", 5110, 100),
    ]
    assert cut_work(build(run_of({0: rows}))) == [(0, 5020)]


def test_a_wait_that_ends_before_any_recorded_work_is_for_older_work():
    rows = [
        call("cudaEventSynchronize", 100, 4900, 1),
        op("aten::mm", 5010, 200),
        *launched("gemm", 5100, 5110, 1000, 2),
    ]
    dfg = build(run_of({0: rows}))
    assert cut_work(dfg) == [(0, 4900)]  # From the first recorded event on.
    assert CUT in reasons(dfg, node(dfg, "cudaEventSynchronize"))
    assert not dfg.residual_ns.any()


def test_older_work_is_split_where_a_wait_for_some_of_it_ends():
    rows = [
        op("aten::mm", 0, 100),
        *launched("gemm", 50, 5000, 1000, 1),
        call("cudaEventSynchronize", 110, 2890, 2),
        op("aten::item", 3000, 3100),
    ]
    dfg = build(run_of({0: rows}))
    assert cut_work(dfg) == [(0, 3000), (3000, 5000)]
    assert CUT in reasons(dfg, node(dfg, "cudaEventSynchronize"))


def test_work_recorded_before_the_first_step_was_not_cut_away():
    earlier = [*launched("before", -900, -890, 100, 9), op("aten::mm", -1000, 200)]
    steps = [step(1, -50, 3000), step(2, 3000, 7000)]
    assert not cut_work(build(run_of({0: [*earlier, *steps, *behind()]})))


def test_a_kernel_behind_recorded_work_of_another_stream_needs_no_other_cause():
    rows = [
        op("aten::mm", 0, 100),
        *launched("first", 20, 30, 4900, 1),
        *launched("second", 60, 4940, 100, 2, stream=20),
        op("aten::item", 110, 5000),
    ]
    assert not cut_work(build(run_of({0: rows})))


def test_a_warning_says_how_long_such_work_takes():
    (warning,) = [one for one in diagnose(run_of({0: behind()})).warnings if one.code == "work-before-window"]
    assert warning.ranks == (0,)
    assert "5.00 ms" in warning.message
