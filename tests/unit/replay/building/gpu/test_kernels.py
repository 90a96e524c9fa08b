"""Graphs of GPU jobs: launches, streams, synchronisation, NCCL; each rule on a few events, expected times by hand."""

from itertools import pairwise

import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.replay import Replayed, rules
from esprof.replay.building.build import build, build_counted
from esprof.replay.dfg import Cls, Edge, LaneKind
from esprof.replay.engine.timeline import replay, strict
from esprof.replay.rules import Rules
from esprof.replay.whatif.graph.edits import scale
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import (
    BACKWARD,
    Args,
    Row,
    call,
    kernel,
    launched,
    nccl_ranks,
    node,
    op,
    predicted,
    reasons,
    run_of,
    step,
)

US = 1_000


def synced(sync_end: float = 1010.0) -> list[Row]:
    """A kernel of 945 µs launched at 50, running from 55; the thread waits for it and continues for 100 µs."""
    return [
        step(1, 0, sync_end + 100),
        op("aten::mm", 40, 30),
        *launched("gemm", 50, 55, 945, 1),
        call("cudaStreamSynchronize", 80, sync_end - 80, 2),
        op("aten::item", sync_end, 100),
    ]


@pytest.mark.parametrize(("late", "own"), [(10, 10), (50, 20)])
def test_a_synchronisation_keeps_at_most_20_us_and_waits_for_the_kernel_for_the_rest(late, own):
    dfg = build(run_of({0: synced(1000.0 + late)}))
    waiting = node(dfg, "cudaStreamSynchronize")
    assert dfg.dur_ns[waiting] == own * US
    assert reasons(dfg, waiting)["gemm"] == Edge.BY_TIME
    assert dfg.residual_ns[waiting] == 0
    assert replay(strict(dfg)).step_ns().tolist() == [(1100 + late) * US]


def test_a_slower_gpu_makes_the_synchronisation_longer():
    slower, faster, same = predicted(synced(), "gpu=0.5x", "gpu=2x", "gpu=1x")
    assert slower == pytest.approx(1110 + 945)
    assert faster == pytest.approx(1110 - 945 / 2)
    assert same == 1110


def test_the_clocks_of_cpu_and_gpu_may_differ_by_tens_of_microseconds():
    for early in (940.0, 1095.0):  # the call returns 60 µs before, or 95 µs after, its kernel ends
        dfg = build(run_of({0: synced(early)}))
        assert reasons(dfg, node(dfg, "cudaStreamSynchronize")).get("gemm") == Edge.BY_TIME


def test_a_wait_that_nothing_explains_is_residual_not_work():
    other = launched("other", 60, 65, 800, 9, stream=20)  # either stream may be the one that was waited for
    dfg = build(run_of({0: [*synced(2000.0), *other]}))
    waiting = node(dfg, "cudaStreamSynchronize")
    assert dfg.dur_ns[waiting] == 20 * US
    assert dfg.residual_ns[waiting] == (2000 - 80 - 20) * US


def test_with_one_stream_only_the_late_return_is_unexplained():
    dfg = build(run_of({0: synced(2000.0)}))
    waiting = node(dfg, "cudaStreamSynchronize")
    assert reasons(dfg, waiting)["gemm"] == Edge.BY_TIME
    assert dfg.residual_ns[waiting] == (2000 - 1000 - 100 - 20) * US  # of the return, 100 µs may be its wake-up


def test_a_device_synchronisation_waits_for_the_last_of_all_streams():
    rows = [row for row in synced(2000.0) if "Synchronize" not in row.name]
    rows += [call("cudaDeviceSynchronize", 80, 1920, 2), *launched("other", 60, 65, 800, 9, stream=20)]
    dfg = build(run_of({0: rows}))
    why = reasons(dfg, node(dfg, "cudaDeviceSynchronize"))
    assert why["gemm"] == why["other"] == Edge.SYNC


def test_a_blocking_copy_waits_for_itself():
    rows = [
        step(1, 0, 1200),
        *launched("gemm", 10, 20, 500, 1),
        call("cudaMemcpyAsync", 30, 600, 2),
        kernel("Memcpy DtoH (Device -> Pageable)", 520, 100, 2),
        op("aten::item", 630, 570),
    ]
    dfg = build(run_of({0: rows}))
    copying = node(dfg, "cudaMemcpyAsync")
    assert reasons(dfg, copying)["Memcpy DtoH (Device -> Pageable)"] == Edge.SYNC
    assert dfg.dur_ns[copying] == 10 * US
    assert predicted(rows, "gpu=0.5x") == [pytest.approx(1200 + 500)]  # the copy itself runs at the bus's speed


def test_silence_before_an_elapsed_time_call_that_ends_with_a_kernel_was_a_wait():
    rows = [
        step(1, 0, 3000),
        *launched("gemm", 10, 20, 2000, 1),
        op("aten::add", 20, 10),
        call("cudaEventElapsedTime", 2040, 5, 3),
        op("aten::add", 2050, 950),
    ]
    dfg = build(run_of({0: rows}))
    assert reasons(dfg, node(dfg, "wait before the next call"))["gemm"] == Edge.BY_TIME
    assert predicted(rows, "gpu=2x")[0] == pytest.approx(3000 - 1000, abs=25)


def test_a_recorded_event_wait_ties_the_streams_by_launch_order():
    rows = [
        step(1, 0, 1000),
        *launched("first", 10, 20, 300, 1, stream=7),
        call("cudaEventRecord", 30, 2, 40),
        *launched("later", 40, 330, 100, 2, stream=7),
        call("cudaStreamWaitEvent", 60, 2, 41),
        Row(
            ph="X", cat="cuda_sync", name="Stream Wait Event", pid=0, tid=20, ts=60, dur=0,
            args=Args(correlation=41, stream=20, device=0, wait_stream=7, wait_correlation=40),
        ),
        *launched("other", 70, 325, 50, 3, stream=20),
        op("aten::add", 100, 900),
    ]  # fmt: skip
    dfg = build(run_of({0: rows}))
    assert reasons(dfg, node(dfg, "other"))["first"] == Edge.WAIT
    assert "later" not in reasons(dfg, node(dfg, "other"))


def test_a_recorded_event_synchronisation_waits_for_the_stream_of_the_event():
    rows = [
        step(1, 0, 1000),
        *launched("first", 10, 20, 300, 1, stream=7),
        call("cudaEventRecord", 30, 2, 40),
        *launched("second", 40, 320, 500, 2, stream=7),
        call("cudaEventSynchronize", 60, 270, 41),
        Row(
            ph="X", cat="cuda_sync", name="Event Synchronize", pid=0, tid=7, ts=60, dur=0,
            args=Args(correlation=41, stream=7, device=0, wait_stream=7, wait_correlation=40),
        ),
        op("aten::add", 330, 670),
    ]  # fmt: skip
    built = build_counted(run_of({0: rows}))
    why = reasons(built.dfg, node(built.dfg, "cudaEventSynchronize"))
    assert why["first"] == Edge.SYNC
    assert "second" not in why
    assert built.counts.waits_recorded == 1


def test_without_records_a_stream_wait_ties_the_threads_next_launch_to_the_other_stream():
    rows = [
        step(1, 0, 1000),
        *launched("first", 10, 20, 300, 1, stream=7),
        call("cudaStreamWaitEvent", 30, 2, 40),
        *launched("other", 40, 325, 50, 3, stream=20),
        op("aten::add", 100, 900),
    ]
    dfg = build(run_of({0: rows}))
    assert reasons(dfg, node(dfg, "other"))["first"] == Edge.LIKELY_WAIT


def test_a_stream_wait_paired_wrongly_is_rejected_and_counted():
    rows = [
        step(1, 0, 1000),
        *launched("first", 10, 20, 300, 1, stream=7),
        call("cudaStreamWaitEvent", 30, 2, 40),
        *launched("other", 40, 60, 50, 3, stream=20),  # runs long before `first` ends
        op("aten::add", 100, 900),
    ]
    built = build_counted(run_of({0: rows}))
    assert "first" not in reasons(built.dfg, node(built.dfg, "other"))
    assert built.counts.waits_rejected == 1


def test_a_late_kernel_that_follows_anothers_end_waited_for_it():
    rows = [
        step(1, 0, 1000),
        *launched("first", 10, 20, 300, 1, stream=7),
        *launched("other", 40, 325, 50, 3, stream=20),
        op("aten::add", 100, 900),
    ]
    dfg = build(run_of({0: rows}))
    assert reasons(dfg, node(dfg, "other"))["first"] == Edge.BY_TIME


def test_a_late_kernel_under_a_full_gpu_is_contention_and_scales_with_compute():
    rows = [
        step(1, 0, 1200),
        *launched("tiny", 1, 11, 2, 5, stream=9),
        *launched("filler", 10, 20, 500, 1, stream=7),
        *launched("small", 40, 450, 50, 3, stream=20),
        call("cudaDeviceSynchronize", 60, 460, 9),
        op("aten::add", 600, 600),
    ]
    dfg = build(run_of({0: rows}))
    late = node(dfg, "small")
    assert dfg.contended[late]
    assert dfg.residual_ns[late] > 350 * US
    assert (strict(dfg).residual_ns[late] == dfg.residual_ns[late]).all()


def test_the_launch_queue_is_finite():
    """1,100 kernels of 100 µs each; the launches block once 1,000 are outstanding, so only the GPU sets the pace."""
    depth, count = 1000, 1100
    rows: list[Row] = []
    now = 0.0
    for n in range(count):
        begin, run_at = now, 10 + 100.0 * n
        end = begin + 5 if n < depth else 10 + 100.0 * (n - depth) + 1
        rows += [call("cudaLaunchKernel", begin, max(5, end - begin), n + 1), kernel("k", run_at, 100, n + 1)]
        now = max(begin + 5, end)
    rows += [step(1, 0, now), op("loop", 0, now)]
    run = run_of({0: rows})
    dfg = build(run)
    assert replay(dfg).step_ns()[0] == round(now * US)
    (slower,) = what_if(run, dfg, ["gpu=0.5x"])
    # 110 ms of GPU work: at half the speed no step can be shorter than 220 ms.
    assert slower.predicted_us is not None
    assert slower.predicted_us / now == pytest.approx(2, rel=0.02)


def test_after_a_lost_step_launches_wait_for_room_in_the_queue():
    """2,000 launches in ten steps, of which 1,000 may be outstanding; one rank has nothing of its eighth step."""
    depth, count, lost = 1000, 2000, range(1400, 1600)
    rows: list[Row] = []
    now, begins = 0.0, []
    for n in range(count):
        if n % 200 == 0:
            begins.append(now)
        end = now + 5 if n < depth else max(now + 5, 10 + 100.0 * (n - depth) + 1)
        if n not in lost:
            rows += [call("cudaLaunchKernel", now, end - now, n + 1), kernel(f"k{n}", 10 + 100.0 * n, 100, n + 1)]
        now = end
    steps = [step(at, begin, end) for at, (begin, end) in enumerate(pairwise([*begins, now]), 1)]
    other = [*steps, *(op("aten::mm", begin, 50) for begin in begins)]
    for one in steps[:7] + steps[8:]:
        rows += [one, op("loop", one.ts, one.dur)]
    dfg = build(run_of({0: rows, 1: other}))
    # No launch has 100 µs of its own: it waits for a kernel.
    assert dfg.dur_ns[dfg.of(Cls.LAUNCH)].max() <= rules.MAX_BLOCKING_OWN


def test_a_kernel_may_start_before_its_launch_by_a_skewed_clock():
    rows = [step(1, 0, 200), *launched("early", 50, 40, 20, 1), op("aten::add", 100, 100)]
    dfg = build(run_of({0: rows}))
    assert dfg.residual_ns.sum() == 0
    assert dfg.recorded_ns[node(dfg, "early")] == 40 * US


def test_kernels_of_before_the_window_hold_their_stream():
    rows = [
        step(1, 1000, 2000),
        kernel("old", 900, 600, 77),  # its launch was not recorded
        *launched("new", 1010, 1500, 100, 1),
        op("aten::add", 1100, 900),
    ]
    built = build_counted(run_of({0: rows}))
    dfg = built.dfg
    assert reasons(dfg, node(dfg, "new"))["old"] == Edge.LANE
    assert dfg.step[node(dfg, "old")] == -1
    assert built.counts.kernels_without_launch == 0


def test_a_kernel_whose_launch_was_lost_is_counted():
    rows = [
        step(1, 0, 1000),
        *launched("first", 10, 20, 100, 1),
        kernel("orphan", 200, 100, 55),
        op("aten::add", 100, 900),
    ]
    assert build_counted(run_of({0: rows})).counts.kernels_without_launch == 1


def test_work_of_the_profiler_after_the_last_step_is_excluded():
    rows = [*synced(), call("cudaDeviceSynchronize", 1200, 90_000, 99)]
    assert build(run_of({0: rows})).marks.steps == (1,)
    assert replay(build(run_of({0: rows}))).end_ns.max() == 1110 * US


def test_threads_without_operations_are_left_out():
    watchdog = [call("cudaEventQuery", 10.0 * n, 2, 1000 + n, tid=77) for n in range(50)]
    dfg = build(run_of({0: [*synced(), *watchdog]}))
    assert {lane.role for lane in dfg.lanes} == {"main", "stream 7"}


def backward() -> list[Row]:
    """The main thread hands over to autograd at 100 µs and has it back at 600."""
    return [
        step(1, 0, 1000),
        op("aten::forward", 0, 100),
        op("autograd::engine::evaluate_function: A", 130, 200, BACKWARD),
        op("autograd::engine::evaluate_function: B", 330, 250, BACKWARD),
        op("aten::optimizer", 600, 400),
        *launched("k", 10, 20, 30, 1),
    ]


def test_main_and_autograd_threads_hand_over_to_each_other():
    dfg = build(run_of({0: backward()}))
    waits = [n for n in range(dfg.nodes) if dfg.label(n) == "hand-over"]
    assert [(dfg.lanes[dfg.lane[n]].role, int(dfg.recorded_ns[n])) for n in waits] == [
        ("autograd", 100 * US),
        ("main", 580 * US),
    ]
    assert all(dfg.dur_ns[n] == 0 for n in waits)
    assert predicted(backward(), "cpu=2x") == [pytest.approx(500, abs=3)]


def test_a_nccl_kernel_waits_until_the_last_rank_arrives_and_then_communicates():
    dfg = build(run_of(nccl_ranks()))
    for rank in (0, 1):
        communication = node(dfg, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", rank)
        assert dfg.dur_ns[communication] == 50 * US
        assert dfg.recorded_ns[communication] == 410 * US
    run = run_of(nccl_ranks())
    fixed, network = what_if(run, build(run), ["straggler=fix", "network=2x"])
    assert fixed.predicted_us == pytest.approx(660 - 300)
    assert network.predicted_us == pytest.approx(660 - 25)


def test_collectives_are_matched_from_the_end_of_a_step():
    ranks = nccl_ranks()
    # Rank 0's window also holds the end of a collective of before its first step.
    ranks[0] = [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", -50, 70, 99, stream=20), *ranks[0]]
    built = build_counted(run_of(ranks))
    assert built.counts.collectives == 3
    assert built.counts.collectives_matched == 2
    assert replay(built.dfg).step_ns().tolist() == [660 * US]


def test_collectives_of_different_sizes_are_not_matched():
    ranks = nccl_ranks()
    for rank, rows in ranks.items():
        for row in rows:
            if row.name.startswith("nccl"):
                row.args = Args(
                    correlation=1, stream=20, device=0, collective="allreduce", in_elements=100 + rank, dtype="Float"
                )
    assert build_counted(run_of(ranks)).counts.collectives_matched == 0


def test_sequence_numbers_match_calls_that_order_would_not():
    def rows(order: list[int]) -> list[Row]:
        found: list[Row] = [step(1, 0, 1000), op("aten::mm", 0, 1000)]
        for at, sequence in enumerate(order):
            found.append(call("cudaLaunchKernel", 10 + at, 0.5, sequence))
            args = {"collective": "allreduce", "sequence_in_group": sequence, "group_ranks": "[0, 1]"}
            found.append(kernel("ncclDevKernel_AllReduce", 100 * sequence, 90, sequence, 20 + sequence, **args))
        return found

    built = build_counted(run_of({0: rows([1, 2, 3]), 1: rows([3, 1, 2])}))
    assert built.counts.collectives_matched == 6
    for number in range(3):
        arrivals = np.flatnonzero((built.dfg.collective == number) & (built.dfg.rank >= 0) & built.dfg.of(Cls.WAIT))
        assert len({int(built.dfg.recorded_ns[n]) for n in arrivals}) == 1


def test_time_that_a_missing_rank_may_explain_is_not_communication():
    ranks = nccl_ranks()
    run = run_of({0: ranks[0]}, world=2)
    replayed = Replayed.of(run)
    assert replayed.built.dfg.cls[node(replayed.built.dfg, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")] == Cls.RESIDUAL
    (network,) = what_if(run, replayed.built.dfg, ["network=2x"])
    assert not network.answered
    diagnosis = diagnose(run)
    assert not [f for f in diagnosis.findings if f.id == "ESP301"]
    assert "Rank 1 is missing" in diagnosis.verdict
    assert diagnosis.explained_pct < 60


def test_point_to_point_calls_are_counted_separately():
    rows = [
        step(1, 0, 1000),
        op("aten::mm", 0, 1000),
        call("cudaLaunchKernel", 10, 5, 1),
        kernel("ncclDevKernel_SendRecv", 20, 100, 1, stream=20, collective="send", target_rank=1, group_ranks="[0, 1]"),
    ]
    replayed = Replayed.of(run_of({0: rows, 1: rows}))
    assert replayed.built.counts.collectives == 0
    assert "collectives-unmatched" in [warning.code for warning in replayed.warnings]


def test_a_faster_host_is_bound_by_the_gpus_own_pace():
    """The GPU takes 90 µs a step over two streams that wait for each other, 45 on each; the host 100."""
    rows = []
    for n in range(12):
        at = n * 100.0
        rows += [step(n, at, at + 100), op("loop", at, 100)]
        rows += launched("a", at + 1, at + 11, 45, 3 * n + 1, stream=7)
        rows += [
            call("cudaStreamWaitEvent", at + 10, 1, 5000 + n),
            *launched("b", at + 20, at + 56, 45, 3 * n + 2, stream=20),
        ]
        rows += [call("cudaStreamWaitEvent", at + 30, 1, 6000 + n)]
    replayed = Replayed.of(run_of({0: rows}))
    (faster,) = replayed.pricer.answers(["cpu=4x"])
    assert faster.predicted_us == pytest.approx(90, rel=0.06)


def test_operations_whose_rounded_times_overlap_both_count():
    rows = [step(1, 0, 20), op("first", 0, 10.001), op("second", 10, 10), *launched("k", 1, 2, 1, 1)]
    dfg = build(run_of({0: rows}))
    assert dfg.dur_ns[node(dfg, "second")] == 9_999


def test_steps_that_are_not_common_to_all_ranks_are_named():
    rows = {
        r: [row for n in range(r, 6) for row in (step(n, n * 10, n * 10 + 10), op("a", n * 10, 10))] for r in (0, 1)
    }
    replayed = Replayed.of(run_of(rows))
    (warning,) = [w for w in replayed.warnings if w.code == "steps-left-out"]
    assert warning.message.startswith("step 0 left out")


def test_allocator_calls_are_a_class_of_their_own():
    rows = [step(1, 0, 500), op("aten::empty", 0, 300), call("cudaMalloc", 10, 200, 5), op("aten::add", 300, 200)]
    dfg = build(run_of({0: [*rows, *launched("k", 310, 330, 20, 8)]}))
    assert dfg.cls[node(dfg, "cudaMalloc")] == Cls.ALLOCATOR


def graph_launch(kernels: list[tuple[str, float, float, int]], until: float = 1000) -> list[Row]:
    """One launch of a CUDA graph at 10 µs; its kernels are (name, start, duration, stream)."""
    rows = [step(1, 0, until), op("aten::mm", 0, 50), call("cudaGraphLaunch", 10, 20, 1)]
    return [*rows, *(kernel(name, start, dur, 1, stream) for name, start, dur, stream in kernels)]


def test_the_launch_of_a_cuda_graph_fans_out_to_its_kernels_in_stream_order():
    rows = graph_launch([("a", 30, 100, 7), ("b", 31, 200, 20), ("c", 131, 50, 7), ("d", 232, 10, 20)])
    dfg = build(run_of({0: rows}))
    assert all(Edge.LAUNCH in reasons(dfg, node(dfg, name)).values() for name in "abcd")
    assert reasons(dfg, node(dfg, "c"))["a"] == Edge.LANE
    assert reasons(dfg, node(dfg, "d"))["b"] == Edge.LANE
    built = build_counted(run_of({0: rows}))
    assert (built.counts.kernels, built.counts.launches_without_kernel) == (4, 0)


def test_nodes_of_a_cuda_graph_depend_on_one_another_across_streams():
    """Ten kernels of 10 µs alternate between two streams: each waits for the previous one, if only for 10 µs."""
    turns = [(f"k{n}", 30 + 11.0 * n, 10, (7, 20)[n % 2]) for n in range(10)]
    dfg = build(run_of({0: graph_launch(turns)}))
    for n in range(1, 10):
        assert reasons(dfg, node(dfg, f"k{n}"))[f"k{n - 1}"] == Edge.BY_TIME
    assert replay(strict(dfg)).end_ns[node(dfg, "k9")] == (30 + 11 * 9 + 10) * US
    faster = replay(strict(scale(dfg, dfg.on(LaneKind.STREAM), 2.0)))
    assert faster.end_ns[node(dfg, "k9")] == (30 + 10 * 5 + 9) * US


def test_a_cuda_graph_takes_one_entry_of_the_launch_queue():
    kernels = [("k", 30 + 2.0 * n, 2, 7) for n in range(1200)]
    rows = [*graph_launch(kernels, until=5000), *launched("after", 100, 2430, 10, 2)]
    dfg = build(run_of({0: rows}))
    assert Edge.WAIT not in reasons(dfg, node(dfg, "cudaLaunchKernel after")).values()


def sync_record(name: str, at: float, correlation: int, stream: int, **args: int) -> Row:
    arguments = Args(correlation=correlation, stream=stream, device=0, **args)
    return Row(ph="X", cat="cuda_sync", name=name, pid=0, tid=stream, ts=at, dur=0, args=arguments)


def two_streams(sync: str, correlation: int, until: float) -> list[Row]:
    """Kernels on two streams, and a synchronisation from 60 µs on."""
    return [
        step(1, 0, 1000),
        op("aten::mm", 0, 60),
        *launched("short", 10, 20, 200, 1, stream=7),
        *launched("long", 30, 40, 500, 2, stream=20),
        call(sync, 60, until - 60, correlation),
        op("aten::add", until, 1000 - until),
    ]


def test_a_recorded_stream_synchronisation_waits_for_that_stream_however_late_it_returns():
    rows = [*two_streams("cudaStreamSynchronize", 9, 700), sync_record("Stream Sync", 60, 9, 7)]
    why = reasons(dfg := build(run_of({0: rows})), node(dfg, "cudaStreamSynchronize"))
    assert why.get("short") == Edge.SYNC
    assert "long" not in why


def test_a_recorded_context_synchronisation_names_no_stream_and_waits_for_all():
    rows = [*two_streams("cudaDeviceSynchronize", 9, 550), sync_record("Context Sync", 60, 9, -1)]
    built = build_counted(run_of({0: rows}))
    why = reasons(built.dfg, node(built.dfg, "cudaDeviceSynchronize"))
    assert (why["short"], why["long"]) == (Edge.SYNC, Edge.SYNC)
    assert (built.counts.waits_recorded, built.counts.waits_inferred) == (1, 0)
    assert {lane.role for lane in built.dfg.lanes} == {"main", "stream 7", "stream 20"}


def test_silence_before_a_cuda_free_that_ends_with_a_kernel_was_a_wait():
    rows = [
        step(1, 0, 3000),
        *launched("gemm", 10, 20, 2000, 1),
        op("aten::add", 20, 10),
        call("cudaFree", 2040, 300, 3),
        op("aten::add", 2400, 600),
    ]
    dfg = build(run_of({0: rows}))
    assert reasons(dfg, node(dfg, "wait before the next call"))["gemm"] == Edge.BY_TIME
    assert dfg.dur_ns[node(dfg, "cudaFree")] == 300 * US


def test_a_launch_without_a_kernel_is_counted():
    rows = [*synced(), call("cudaLaunchKernel", 1020, 5, 77)]
    assert build_counted(run_of({0: rows})).counts.launches_without_kernel == 1


def test_without_a_rule_its_edges_are_not_there():
    rows = [
        step(1, 0, 1000),
        *launched("first", 10, 20, 300, 1, stream=7),
        call("cudaStreamWaitEvent", 30, 2, 40),
        *launched("other", 40, 325, 50, 3, stream=20),
        call("cudaStreamSynchronize", 100, 285, 4),
        op("aten::add", 385, 615),
    ]
    run = run_of({0: rows})
    plain, unsynced, unwaited = (
        build(run, rules=r) for r in (Rules(), Rules(syncs_by_time=False), Rules(stream_waits=False))
    )
    assert reasons(plain, node(plain, "cudaStreamSynchronize"))["other"] == Edge.BY_TIME
    assert "other" not in reasons(unsynced, node(unsynced, "cudaStreamSynchronize"))
    assert reasons(plain, node(plain, "other"))["first"] == Edge.LIKELY_WAIT
    assert "first" not in reasons(unwaited, node(unwaited, "other"))
    alone = build(run_of(nccl_ranks()), rules=Rules(rendezvous=False))
    assert alone.dur_ns[node(alone, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")] == 350 * US
