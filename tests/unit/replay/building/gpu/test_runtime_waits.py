"""Causes of waits in runtime calls without a record: kernels that ended as they returned, their device, and
the event of the step before."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Edge, LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph.edits import scale
from tests.cases.graph import BACKWARD, Row, call, launched, node, nodes_of, op, predicted, reasons, run_of, step

US = 1_000
HIDDEN = "wait before the next call"


def queued_behind(waits: list[Row]) -> list[Row]:
    """Two kernels on one stream: `one` up to 1,020 µs, then `two` up to 4,020."""
    return [
        step(1, 0, 5000),
        *launched("one", 10, 20, 1000, 1),
        *launched("two", 30, 1020, 3000, 2),
        op("aten::mm", 40, 20),
        *waits,
        op("aten::item", 1030, 3970),
    ]


def test_a_wait_is_for_the_kernel_that_ended_as_it_returned_even_if_more_is_queued():
    dfg = build(run_of({0: queued_behind([call("cudaEventSynchronize", 60, 965, 3)])}))
    waiting = node(dfg, "cudaEventSynchronize")
    why = reasons(dfg, waiting)
    assert why["one"] == Edge.BY_TIME
    assert "two" not in why
    assert (dfg.dur_ns[waiting], dfg.residual_ns[waiting]) == (5 * US, 0)


def test_a_wait_is_not_for_a_kernel_that_was_launched_after_it_began():
    rows = [
        step(1, 0, 5000),
        *launched("long", 10, 20, 4000, 1),
        op("aten::mm", 40, 20),
        call("cudaEventSynchronize", 60, 965, 3),
        op("autograd::engine::evaluate_function: A", 100, 200, BACKWARD),
        call("cudaLaunchKernel", 110, 5, 2, tid=BACKWARD),
        launched("later", 110, 120, 900, 2, stream=20)[1],
        op("aten::item", 1030, 3970),
    ]
    dfg = build(run_of({0: rows}))
    waiting = node(dfg, "cudaEventSynchronize")
    assert Edge.BY_TIME not in reasons(dfg, waiting).values()
    assert dfg.residual_ns[waiting] > 900 * US


def test_silence_before_an_elapsed_time_call_was_a_wait_for_the_kernel_that_ended_with_it():
    dfg = build(run_of({0: queued_behind([call("cudaEventElapsedTime", 1025, 2, 3)])}))
    why = reasons(dfg, node(dfg, HIDDEN))
    assert why["one"] == Edge.BY_TIME
    assert "two" not in why


def test_silence_before_an_elapsed_time_call_with_which_nothing_ended_was_no_wait():
    rows = queued_behind([call("cudaEventElapsedTime", 800, 2, 3)])
    assert nodes_of(build(run_of({0: rows})), HIDDEN) == []


# cudaFree


def freeing(begins: float, ends: float) -> list[Row]:
    """A kernel that runs until 1,000 µs, cudaFree, and 2 ms of CPU work."""
    half = begins / 2
    return [
        step(1, 0, ends + 2000),
        op("aten::mm", 0, half),
        op(
            "aten::mm", half, half
        ),  # in two: an operation that is long, and ends with a kernel, would have waited for it
        *launched("gemm", 10, 20, 980, 1),
        call("cudaFree", begins, ends - begins, 2),
        op("aten::add", ends, 2000),
    ]


@pytest.mark.parametrize(("begins", "ends"), [(100, 1300), (980, 1030)], ids=["long", "short"])
def test_freeing_memory_waits_for_the_device_and_keeps_its_own_time(begins, ends):
    rows = freeing(begins, ends)
    dfg = build(run_of({0: rows}))
    free = node(dfg, "cudaFree")
    assert reasons(dfg, free)["gemm"] == Edge.SYNC
    assert dfg.dur_ns[free] == (ends - 1000) * US
    assert predicted(rows, "gpu=0.5x", "gpu=1x") == [pytest.approx(ends + 980 + 2000), pytest.approx(ends + 2000)]


def test_freeing_memory_that_returned_before_the_device_was_done_did_not_wait():
    rows = freeing(100, 300)
    dfg = build(run_of({0: rows}))
    free = node(dfg, "cudaFree")
    assert "gemm" not in reasons(dfg, free)
    assert dfg.dur_ns[free] == 200 * US
    assert predicted(rows, "gpu=0.5x") == [pytest.approx(2300)]


@pytest.mark.parametrize(("begins", "ends"), [(100, 1300), (980, 1030)], ids=["long", "short"])
def test_without_the_allocator_nobody_waits_for_the_device(begins, ends):
    assert predicted(freeing(begins, ends), "allocator=0") == [pytest.approx(begins + 2000)]


def test_without_the_allocator_nobody_waits_in_the_silence_before_it():
    rows = [
        step(1, 0, 4000),
        *launched("gemm", 10, 20, 980, 1),
        op("aten::mm", 20, 20),
        call("cudaFree", 1010, 200, 2),
        op("aten::add", 1210, 2790),
    ]
    dfg = build(run_of({0: rows}))
    assert reasons(dfg, node(dfg, HIDDEN))["gemm"] == Edge.BY_TIME
    assert predicted(rows, "allocator=0") == [pytest.approx(40 + 2790, abs=25)]


# The event of the step before


def with_one_step_in_flight(gpu: float, cpu: float, waits_long: int) -> list[Row]:
    """Ten steps, each with a kernel of `gpu` µs, an event, `cpu` µs of CPU work, and a wait for the event of the one before.
    The first `waits_long` steps have next to no CPU work, and so wait for long."""
    rows: list[Row] = []
    now, free, done = 0.0, 0.0, 0.0
    for n in range(10):
        begin, works = now, 20 if n < waits_long else cpu
        start = max(free, begin + 15)
        rows += [
            *launched(f"kernel {n}", begin + 5, start, gpu, 3 * n + 1),
            call("cudaEventRecord", begin + 12, 2, 3 * n + 2),
            op("aten::mm", begin + 15, works),
        ]
        since = begin + 15 + works
        now = max(since + 5, done + 5)
        rows.append(call("cudaEventSynchronize", since, now - since, 3 * n + 3))
        free, done = start + gpu, start + gpu
        rows.append(step(n, begin, now))
    return rows


def test_a_script_that_waits_for_the_event_of_the_step_before_waits_for_a_slower_gpu():
    rows = with_one_step_in_flight(gpu=500, cpu=1000, waits_long=3)
    dfg = build(run_of({0: rows}))
    waits = nodes_of(dfg, "cudaEventSynchronize")
    for n in range(1, 10):
        assert reasons(dfg, waits[n])[f"kernel {n - 1}"] == Edge.BY_TIME
        assert f"kernel {n}" not in reasons(dfg, waits[n])
    # Nobody waits for the last of ten kernels of 1,500 µs.
    slower = replay(scale(dfg, dfg.on(LaneKind.STREAM), 1 / 3))
    assert slower.step_ns().sum() == pytest.approx(9 * 1500 * US, rel=0.01)


def test_a_script_of_which_no_long_wait_shows_the_event_is_not_said_to_wait():
    dfg = build(run_of({0: with_one_step_in_flight(gpu=500, cpu=1000, waits_long=0)}))
    waits = nodes_of(dfg, "cudaEventSynchronize")
    assert all(Edge.BY_TIME not in reasons(dfg, n).values() for n in waits)
