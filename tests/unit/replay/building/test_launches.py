"""Launch times of work, launch latency, and launches that wait for room in their queue."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Edge
from tests.cases.graph import Row, call, kernel, launched, node, nodes_of, op, predicted, reasons, run_of, step

US = 1_000
DEPTH = 1000


# Launches that were not recorded


def test_work_of_before_the_window_that_starts_late_in_it_is_waited_for():
    rows = [
        step(1, 1000, 5000),
        kernel("older", 900, 1200, 77),
        kernel("old", 2100, 2000, 78),  # as the one before it, launched before the window
        call("cudaDeviceSynchronize", 1010, 3100, 1),
        op("aten::item", 4110, 890),
    ]
    dfg = build(run_of({0: rows}))
    assert reasons(dfg, node(dfg, "cudaDeviceSynchronize"))["old"] == Edge.SYNC
    assert predicted(rows, "gpu=2x") == [pytest.approx(4000 - 600 - 1000)]


def lost_in_the_middle(sync: float, until: float) -> list[Row]:
    """Of three kernels that run one after the other the launch of the second was not recorded; and a synchronisation."""
    return [
        step(1, 0, 2000),
        *launched("first", 10, 20, 280, 1),
        kernel("second", 600, 300, 55),
        *launched("third", 450, 900, 200, 2),
        call("cudaDeviceSynchronize", sync, until - sync, 3),
        op("aten::item", 1200, 800),
    ]


def test_work_without_a_recorded_launch_precedes_the_next_launch_to_its_stream():
    dfg = build(run_of({0: lost_in_the_middle(700, 1110)}))
    why = reasons(dfg, node(dfg, "cudaDeviceSynchronize"))
    assert why["third"] == Edge.SYNC
    assert "second" not in why


def test_work_without_a_launch_after_a_recorded_one_is_not_from_before_the_window():
    dfg = build(run_of({0: lost_in_the_middle(50, 310)}))
    why = reasons(dfg, node(dfg, "cudaDeviceSynchronize"))
    assert why["first"] == Edge.SYNC
    assert "second" not in why


# Room in the queue of a stream


def queued(count: int, took: float, other: bool = False) -> list[Row]:
    """`count` kernels of `took` µs on one stream, whose launches take 5 µs, but return only when no more than 1,000 are
    outstanding. Then, if `other`, one launch to another stream."""
    rows: list[Row] = []
    now = 0.0
    for n in range(count):
        end = now + 5 if n < DEPTH else max(now + 5, 10 + took * (n - DEPTH) + 1)
        rows += [call("cudaLaunchKernel", now, end - now, n + 1), kernel("k", 10 + took * n, took, n + 1)]
        now = end
    if other:
        rows += launched("other", now, now + 10, 5, count + 1, stream=20)
        now += 5
    return [step(1, 0, now), op("loop", 0, now), *rows]


def test_outstanding_work_of_one_stream_does_not_block_launches_to_another():
    dfg = build(run_of({0: queued(DEPTH + 100, 100, other=True)}))
    assert reasons(dfg, nodes_of(dfg, "cudaLaunchKernel k")[0]).get("k") is None
    full = nodes_of(dfg, "cudaLaunchKernel")  # those that waited for room
    assert all(reasons(dfg, n)["k"] == Edge.WAIT for n in full[-50:])
    assert Edge.WAIT not in reasons(dfg, node(dfg, "cudaLaunchKernel other")).values()


def test_short_launches_that_waited_for_room_wait_less_with_a_faster_gpu():
    rows = queued(3 * DEPTH, 20)
    recorded = rows[0].dur
    assert predicted(rows, "gpu=2x", "gpu=0.5x") == [
        pytest.approx(recorded / 2, rel=0.02),
        pytest.approx(recorded * 2, rel=0.02),
    ]


def test_launches_that_take_long_though_there_is_room_do_not_wait():
    rows: list[Row] = []
    for n in range(DEPTH):
        rows += [call("cudaLaunchKernel", 20 * n, 20, n + 1), kernel("k", 20 * n + 10, 15, n + 1)]
    rows += [step(1, 0, 20 * DEPTH), op("loop", 0, 20 * DEPTH)]
    assert predicted(rows, "gpu=2x") == [pytest.approx(20 * DEPTH)]
    dfg = build(run_of({0: rows}))
    assert all(Edge.WAIT not in reasons(dfg, n).values() for n in nodes_of(dfg, "cudaLaunchKernel k"))


# From a launch to its kernel


def idle(count: int, latency: float, begin: float = 0.0) -> list[Row]:
    """`count` kernels, launched every 100 µs to an idle stream, where they start after `latency` µs."""
    rows: list[Row] = []
    for n in range(count):
        at = begin + 100 * n
        rows += launched("quick", at, at + latency, 10, 1000 + round(at))
    return rows


@pytest.mark.parametrize(("count", "latency"), [(19, 8), (18, 5)], ids=["shown", "too few tell"])
def test_a_kernel_that_starts_late_on_an_idle_stream_has_the_latency_of_the_quickest(count, latency):
    rows = [step(1, 0, 4000), *idle(count, 8), *launched("late", 3000, 3300, 10, 1), op("aten::mm", 3400, 600)]
    dfg = build(run_of({0: rows}))
    assert dfg.residual_ns[node(dfg, "late")] == (300 - latency) * US
    assert dfg.residual_ns[nodes_of(dfg, "quick")].max() == 0


def test_most_kernels_on_idle_streams_may_have_waited_for_an_unknown_cause():
    rows = [step(1, 0, 9000), *idle(50, 60), *idle(4, 6, begin=5000), op("aten::mm", 8000, 1000)]
    dfg = build(run_of({0: rows}))
    assert set(dfg.residual_ns[nodes_of(dfg, "quick")].tolist()) == {0, 54 * US}


def held(number: int, at: float) -> list[Row]:
    """A kernel of 200 µs, and one on another stream that an event holds until it ends."""
    return [
        *launched("holds", at, at + 10, 200, 10 * number, stream=9),
        call("cudaStreamWaitEvent", at + 10, 1, 10 * number + 1),
        *launched("held", at + 20, at + 212, 20, 10 * number + 2),
    ]


def test_kernels_after_an_event_and_collectives_show_no_latency():
    rows = [step(1, 0, 40_000), op("aten::mm", 39_000, 1000)]
    for n in range(12):
        rows += held(n, 1000 * n + 20)
        # A kernel with a name of NCCL's, launched to an idle stream.
        rows += launched("ncclDevKernel_AllReduce", 1000 * n + 600, 1000 * n + 608, 50, 500 + n, stream=20)
    rows += launched("late", 20_000, 20_300, 10, 900)
    # 12 kernels that hold others show 10 µs: too few.
    dfg = build(run_of({0: rows}))
    assert dfg.residual_ns[node(dfg, "late")] == 295 * US


def test_a_kernel_held_by_an_event_starts_earlier_if_the_awaited_work_does():
    rows = [
        step(1, 0, 400),
        *held(1, 0),
        call("cudaDeviceSynchronize", 30, 205, 90),
        op("aten::item", 235, 165),
    ]
    assert predicted(rows, "gpu=2x", "kernel[holds]=2x") == [
        pytest.approx(400 - 100 - 10, abs=3),
        pytest.approx(400 - 100, abs=3),
    ]
