"""The machine against arithmetic by hand: durations are small numbers, written as they are meant."""

import pytest

from benchmarks.known.machine import Deadlock, run
from benchmarks.known.program import (
    MAIN,
    Acquire,
    Await,
    Busy,
    Call,
    Close,
    Cost,
    GroupCollective,
    JoinCollective,
    Kernel,
    Kind,
    Open,
    Post,
    Program,
    Record,
    Release,
    Step,
    Sync,
    Wait,
)


class Costs(list):
    """The costs of a program: each call appends one and gives its number."""

    def __call__(self, ns, kind=Kind.CPU, rank=0, name="work"):
        self.append(Cost(kind, rank, name, ns))
        return len(self) - 1


@pytest.fixture
def ns():
    return Costs()


def timeline(ns, *ranks, collectives=(), **more):
    """What comes of ranks, each the code of its main thread or of its threads by name."""
    threads = tuple(rank if isinstance(rank, dict) else {MAIN: tuple(rank)} for rank in ranks)
    return run(Program(threads, tuple(ns), tuple(collectives), **more))


def spans(result, lane=None, rank=0):
    """(name, start, end) of the rows of a lane, in the order of their starts."""
    rows = [row for row in result.rows if row.rank == rank and (lane is None or row.lane == lane)]
    return [(row.name, row.start, row.end) for row in sorted(rows, key=lambda row: row.start)]


def launch(ns, name, work, *, cpu=2, delay=1, stream=7):
    return Call("cudaLaunchKernel", ns(cpu), (Kernel(stream, name, ns(work, Kind.KERNEL)),), ns(delay, Kind.DELAY))


def test_operations_nest_and_gaps_are_not_recorded(ns):
    code = [
        Open("a"),
        Busy(ns(3)),
        Open("b"),
        Busy(ns(4)),
        Close(),
        Busy(ns(1)),
        Close(),
        Busy(ns(10)),
        Open("c"),
        Close(),
    ]
    assert spans(timeline(ns, code)) == [("a", 0, 8), ("b", 3, 7), ("c", 18, 18)]


def test_a_kernel_begins_after_its_launch_and_the_kernel_before_it(ns):
    code = [launch(ns, "k", 10), launch(ns, "l", 5), Busy(ns(50)), launch(ns, "m", 5)]
    # k may begin at 2 + 1; l, launched at 4, after k; m is launched at 56 and finds the stream idle.
    assert spans(timeline(ns, code), 7) == [("k", 3, 13), ("l", 13, 18), ("m", 57, 62)]


def test_kernels_of_a_stream_keep_their_distance(ns):
    code = [launch(ns, "k", 10), launch(ns, "l", 5)]
    assert spans(timeline(ns, code, spacing_ns=2), 7) == [("k", 3, 13), ("l", 15, 20)]


def test_a_stream_waits_for_what_an_event_recorded_and_for_nothing_later(ns):
    code = [
        launch(ns, "k", 20),
        Call("cudaEventRecord", ns(1), (Record(0, 7),)),
        launch(ns, "later", 100),
        Call("cudaStreamWaitEvent", ns(1), (Wait(8, 0),)),
        launch(ns, "waits", 5, stream=8),
        launch(ns, "free", 5, stream=9),
    ]
    result = timeline(ns, code)
    assert spans(result, 8) == [("waits", 23, 28)]  # k ends at 3 + 20.
    assert spans(result, 9) == [("free", 11, 16)]  # The fifth call ends at 2 + 1 + 2 + 1 + 2 + 2.


def test_an_event_of_a_stream_that_waits_is_done_when_the_wait_is(ns):
    code = [
        launch(ns, "k", 20),
        Call("cudaEventRecord", ns(1), (Record(0, 7),)),
        Call("cudaStreamWaitEvent", ns(1), (Wait(8, 0),)),
        Call("cudaEventRecord", ns(1), (Record(1, 8),)),
        Sync("cudaEventSynchronize", ns(2), event=1),
    ]
    assert spans(timeline(ns, code), MAIN)[-1] == ("cudaEventSynchronize", 5, 25)


@pytest.mark.parametrize(
    ("target", "end"),
    [({"stream": 7}, 13 + 4), ({"stream": 8}, 35 + 4), ({}, 35 + 4), ({"event": 0}, 13 + 4), ({"stream": 99}, 7 + 4)],
)
def test_a_cpu_waits_for_an_event_a_stream_or_the_device(ns, target, end):
    # k runs from 3 to 13, l from 5 to 35; the wait begins at 2 + 2 + 1 + 2 = 7.
    code = [
        launch(ns, "k", 10),
        Call("cudaEventRecord", ns(0), (Record(0, 7),)),
        launch(ns, "l", 30, stream=8),
        Busy(ns(3)),
        Sync("sync", ns(4), **target),
    ]
    assert spans(timeline(ns, code), MAIN)[-1] == ("sync", 7, end)


def test_a_wait_for_what_is_done_costs_its_call_only(ns):
    code = [launch(ns, "k", 10), Busy(ns(90)), Sync("cudaStreamSynchronize", ns(4), stream=7)]
    assert spans(timeline(ns, code), MAIN)[-1] == ("cudaStreamSynchronize", 92, 96)


def nccl(ns, collective, *, cpu=2):
    return Call("cudaLaunchKernelExC", ns(cpu), (Kernel(24, "nccl", -1, collective),), ns(1, Kind.DELAY))


def test_members_of_a_collective_begin_each_in_turn_and_end_together(ns):
    collective = GroupCollective((0, 1), ns(5, Kind.LATENCY), ns(30, Kind.BYTES))
    result = timeline(ns, [nccl(ns, 0)], [Busy(ns(40)), nccl(ns, 0)], collectives=[collective])
    assert spans(result, 24) == [("nccl", 3, 78)]
    assert spans(result, 24, rank=1) == [("nccl", 43, 78)]  # The last comes at 43; 5 + 30 later all are done.
    assert result.collectives == [(43, 78)]


def test_a_collective_holds_its_stream_while_it_waits_for_peers(ns):
    collectives = [GroupCollective((0, 1), ns(0), ns(10)), GroupCollective((0,), ns(0), ns(1))]
    result = timeline(ns, [nccl(ns, 0), nccl(ns, 1)], [Busy(ns(40)), nccl(ns, 0)], collectives=collectives)
    assert spans(result, 24) == [("nccl", 3, 53), ("nccl", 53, 54)]


def test_a_collective_between_cpus_takes_as_long_as_on_the_slowest_cpu(ns):
    collective = GroupCollective((0, 1), ns(5), ns(30), (ns(7), ns(9)))
    ranks = [
        [Open("gloo:all_reduce"), JoinCollective(0), Close()],
        [Busy(ns(10)), Open("gloo:all_reduce"), JoinCollective(0), Close()],
    ]
    assert spans(timeline(ns, *ranks, collectives=[collective])) == [("gloo:all_reduce", 0, 54)]


def test_a_graph_is_one_call_with_many_kernels_that_wait_for_each_other(ns):
    commands = (
        Kernel(7, "a", ns(10)),
        Record(0, 7),
        Wait(8, 0),
        Kernel(8, "b", ns(4)),
        Kernel(7, "c", ns(2)),
        Record(1, 8),
        Wait(7, 1),
        Kernel(7, "d", ns(1)),
    )
    result = timeline(ns, [Call("cudaGraphLaunch", ns(5), commands, ns(1, Kind.DELAY))])
    assert spans(result, 7) == [("a", 6, 16), ("c", 16, 18), ("d", 20, 21)]
    assert spans(result, 8) == [("b", 16, 20)]
    assert len({row.correlation for row in result.rows}) == 1


def test_a_full_queue_makes_the_cpu_wait(ns):
    code = [launch(ns, name, 100) for name in "abc"]
    # Two may wait or run: the third call, begun at 4, goes on when a ends at 103.
    assert spans(timeline(ns, code, queue=2), MAIN)[-1] == ("cudaLaunchKernel", 4, 105)


def test_threads_hand_over_by_flags(ns):
    threads = {
        MAIN: (Busy(ns(3)), Post(0), Await(1), Open("after"), Close()),
        "autograd": (Await(0), Open("backward"), Busy(ns(20)), Close(), Post(1)),
    }
    result = timeline(ns, threads)
    assert spans(result, "autograd") == [("backward", 3, 23)]
    assert spans(result, MAIN) == [("after", 23, 23)]


def test_a_lock_goes_to_who_came_first(ns):
    def thread(begin):
        return (Busy(ns(begin)), Acquire("gil"), Open("held"), Busy(ns(10)), Close(), Release("gil"))

    result = timeline(ns, {MAIN: thread(2), "a": thread(1), "b": thread(3)})
    assert spans(result) == [("held", 1, 11), ("held", 11, 21), ("held", 21, 31)]


def test_a_step_lasts_from_the_last_begin_to_the_last_end(ns):
    ranks = [
        [Step(0), Busy(ns(10)), Step(1), Busy(ns(5)), Step(None)],
        [Step(0), Busy(ns(4)), Step(1), Busy(ns(30)), Step(None)],
    ]
    result = timeline(ns, *ranks)
    assert result.step_ns() == {0: 10, 1: 24}  # Rank 1 ends at 34; step 1 counts from rank 0's begin at 10.
    assert result.step_ns(without={1}) == {0: 10, 1: 5}


def test_an_allocator_call_that_takes_no_time_waits_for_nothing(ns):
    code = [launch(ns, "k", 50), Sync("cudaFree", ns(8, Kind.ALLOCATOR))]
    program = Program(({MAIN: tuple(code)},), tuple(ns), ())
    assert spans(run(program), MAIN)[-1] == ("cudaFree", 2, 61)
    without = [0 if cost.kind is Kind.ALLOCATOR else cost.ns for cost in program.costs]
    assert spans(run(program, without), MAIN)[-1] == ("cudaFree", 2, 2)


def test_a_job_that_cannot_go_on_is_an_error(ns):
    collective = GroupCollective((0, 1), ns(0), ns(0))
    with pytest.raises(Deadlock, match="main"):
        timeline(ns, [JoinCollective(0)], [Busy(ns(1))], collectives=[collective])
