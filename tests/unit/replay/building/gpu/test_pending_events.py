"""Which event a stream waits for, where of the wait only the call was recorded."""

from esprof.replay.building.build import build
from esprof.replay.dfg import Edge
from tests.cases.graph import Row, call, kernel, launched, node, op, reasons, run_of, step

A, B = "ncclDevKernel_AllGather_A", "ncclDevKernel_AllGather_B"


def gather(name: str, at: float, start: float, dur: float, correlation: int, stream: int = 20) -> list[Row]:
    """The call of a collective, 30 µs long, and its kernel."""
    return [
        op("record_param_comms", at, 30),
        call("cudaLaunchKernelExC", at + 20, 5, correlation),
        kernel(name, start, dur, correlation, stream),
    ]


def wait(at: float) -> Row:
    return call("cudaStreamWaitEvent", at, 1, 7000 + int(at))


def record(at: float) -> Row:
    return call("cudaEventRecord", at, 1, 7000 + int(at))


def sources(rows: list[Row], held: str) -> list[str]:
    """What an event held this kernel for."""
    dfg = build(run_of({0: [step(1, 0, 2000), *rows, op("aten::item", 1500, 500)]}))
    why = reasons(dfg, node(dfg, held))
    return [name for name, kind in why.items() if kind == Edge.LIKELY_WAIT]


def prefetched() -> list[Row]:
    """Two all-gathers one after the other, launched ahead; they end at 150 and 250 µs."""
    return [*gather(A, 0, 50, 100, 1), *gather(B, 40, 150, 100, 2)]


def test_the_first_launched_work_is_awaited_first():
    rows = [*prefetched(), wait(400), *launched("one", 410, 420, 50, 3), wait(500), *launched("two", 510, 520, 50, 4)]
    assert sources(rows, "one") == [A]
    assert sources(rows, "two") == [B]


def test_a_wait_is_for_work_that_ended_just_before_the_held_kernel():
    rows = [*prefetched(), wait(80), *launched("mm", 90, 252, 50, 3)]
    assert sources(rows, "mm") == [B]


def test_a_wait_is_not_for_work_that_ended_after_the_held_kernel_began():
    rows = [*prefetched(), wait(80), *launched("mm", 90, 180, 50, 3)]
    assert sources(rows, "mm") == [A]


def test_a_wait_right_after_recording_an_event_is_for_the_last_launch():
    copies = launched("copy", 300, 310, 40, 3, stream=9)
    assert sources([*prefetched(), *copies, record(400), wait(402), *launched("mm", 410, 420, 50, 4)], "mm") == ["copy"]
    # Without the event right before it, the wait is for the first that nobody has waited for.
    assert sources([*prefetched(), *copies, wait(402), *launched("mm", 410, 420, 50, 4)], "mm") == [A]


def test_a_wait_right_after_an_event_of_its_own_stream_is_for_the_last_launch_to_another():
    rows = [
        *prefetched(),
        *launched("copy", 300, 310, 40, 3, stream=9),
        *launched("own", 350, 360, 20, 4),
        record(400),
        wait(402),
        *launched("mm", 410, 420, 50, 5),
    ]
    assert sources(rows, "mm") == ["copy"]


def test_a_collective_launched_in_between_is_not_held():
    rows = [
        *gather(A, 0, 50, 100, 1),
        wait(60),
        *gather(B, 100, 152, 100, 2, stream=21),
        *launched("mm", 140, 160, 50, 3),
    ]
    assert sources(rows, "mm") == [A]
    assert sources(rows, B) == []


def test_an_event_that_a_collective_records_itself_is_not_the_one_waited_for():
    rows = [*prefetched(), record(67), wait(72), *launched("mm", 400, 410, 50, 3)]
    assert sources(rows, "mm") == [A]


def test_a_wait_inside_the_call_of_a_collective_is_for_earlier_compute():
    rows = [
        *gather(A, 0, 50, 100, 1, stream=21),
        *launched("mm", 150, 160, 90, 2),
        *gather("ncclDevKernel_Broadcast", 170, 200, 20, 4, stream=22),
        *gather(B, 220, 305, 100, 3),
        wait(225),
    ]
    assert sources(rows, B) == ["mm"]


def test_a_wait_after_the_launch_inside_the_call_of_a_collective_holds_nothing():
    rows = [
        *launched("mm", 200, 210, 90, 2),
        *gather(B, 220, 305, 100, 3),
        wait(247),
        *launched("next", 400, 410, 9, 4),
    ]
    assert sources(rows, "next") == []
    assert sources(rows, B) == []


def test_events_that_nobody_waits_for_do_not_disturb():
    timed = [
        row for n in range(20) for row in (*launched(f"timed {n}", 10 * n, 10 * n + 8, 1, 100 + n), record(10 * n + 6))
    ]
    rows = [*timed, *gather(A, 300, 350, 100, 1), wait(400), *launched("mm", 410, 600, 50, 3)]
    assert sources(rows, "mm") == [A]


def test_unawaited_events_of_other_streams_do_not_change_waits_inferred_by_time():
    copied = [
        row
        for n in range(20)
        for row in (*launched(f"copy {n}", 10 * n, 10 * n + 8, 1, 100 + n, stream=9), record(10 * n + 6))
    ]
    rows = [*copied, *gather(A, 300, 350, 100, 1), wait(400), *launched("mm", 410, 452, 50, 3)]
    assert sources(rows, "mm") == [A]
