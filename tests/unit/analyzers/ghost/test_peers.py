"""The schedule of replayed peers: what it keeps of the graph, and which runs have none."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from esprof.analyzers.ghost.peers import ghost_schedule
from esprof.core.errors import InputError, UsageError
from esprof.recorder.ghost.peers import Call, PeerSchedule, ReplayedPeers
from esprof.replay.dfg import JOIN_LANE, Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.replayed import Replayed
from tests.cases.exported import MS, cpu_rank, cpu_run
from tests.cases.graph import call, gloo, nccl, op, run_of, step

NS_PER_MS = 1_000_000
CALL = Call("all_reduce", (0, 1), 4000)


def schedule_of(run, rank=0):
    return ghost_schedule(Replayed.of(run), rank)


def test_a_collective_has_the_work_of_the_peers_since_the_one_before():
    schedule = schedule_of(cpu_run())
    assert (schedule.rank, schedule.world_size) == (0, 2)
    # The first step only leads to the second.
    assert [one.step for one in schedule.steps] == [1, 2, 3, 4, 5]
    assert {one.recorded_ns for one in schedule.steps} == {50 * NS_PER_MS}
    (call,) = {one for each in schedule.steps for one in each.collectives}
    assert (call.kind, call.group, call.bytes, call.waits, call.awaited) == ("all_reduce", (0, 1), 4000, True, True)
    # Rank 1 comes at 40 ms of its step of 50, and rank 0 at 30; the transfer takes 4 ms.
    assert (call.transfer_ns, call.last) == (4 * NS_PER_MS, 1)
    ((back, work_ns),) = [(since.back, since.work_ns) for since in call.after]
    assert (back, work_ns / NS_PER_MS) == (1, pytest.approx(50, abs=0.1))


def test_a_slow_rank_is_met_by_peers_that_have_waited():
    (call,) = {one for each in schedule_of(cpu_run(), 1).steps for one in each.collectives}
    # From the meeting at 40 ms to the end of the step at 50, and 30 ms more.
    assert [since.work_ns / NS_PER_MS for since in call.after] == [pytest.approx(40, abs=0.1)]
    assert call.last == 0


@pytest.mark.parametrize("slower", [0.5, 1, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_schedule_gives_the_times_of_the_whole_graph(rank, slower):
    """Peers that meet a rank of another speed come when the graph says, in which that rank has this speed."""
    replayed = Replayed.of(cpu_run())
    dfg = replayed.built.dfg
    mine = (dfg.rank == rank) & (dfg.collective < 0)
    end_ns = replay(replace(dfg, dur_ns=np.where(mine, dfg.dur_ns * slower, dfg.dur_ns).astype(np.int64))).end_ns
    arrivals = np.flatnonzero((dfg.rank == rank) & dfg.of(Cls.WAIT) & (dfg.collective >= 0))
    of_rank = np.flatnonzero((dfg.rank == rank) & dfg.of(Cls.COMMUNICATION))
    joins = np.flatnonzero(dfg.lane == JOIN_LANE)
    order = np.argsort(end_ns[joins])
    peers = ReplayedPeers(PeerSchedule(msgspec.to_builtins(ghost_schedule(replayed, rank))))
    # In the first step, which only aligns the two, rank and peers meet.
    peers.launch(CALL, int(end_ns[joins[order[0]]]))
    for join in joins[order[1:]]:
        arrival, ends = ((nodes[dfg.collective[nodes] == dfg.collective[join]]) for nodes in (arrivals, of_rank))
        assert peers.launch(CALL, int(end_ns[arrival[0]])) == end_ns[ends[0]]


def rank_of(numbers_with_collectives):
    """Four steps of 50 ms, some with an all-reduce."""
    rows = []
    for number in range(4):
        begin = number * 50 * MS
        rows += [step(number, begin, begin + 50 * MS), op("aten::mm", begin, 30 * MS)]
        if number in numbers_with_collectives:
            rows += gloo(begin + 30 * MS, begin + 31 * MS, begin + 40 * MS)
        rows += [op("Optimizer.step", begin + 41 * MS, 9 * MS)]
    return rows


def test_steps_without_a_collective_count_with_the_next_one():
    schedule = schedule_of(run_of({rank: rank_of((1, 3)) for rank in (0, 1)}))
    assert [(one.step, one.recorded_ns / NS_PER_MS) for one in schedule.steps] == [(3, 100)]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (run_of({0: cpu_rank(0)}), "a single rank has no peers"),
        (run_of({0: cpu_rank(0), 1: cpu_rank(0)}, world=3), "it lacks rank 2"),
        (run_of({rank: rank_of(()) for rank in (0, 1)}), "no collective of rank 0 was matched"),
        (run_of({rank: rank_of((2,)) for rank in (0, 1)}), "no two steps with the same collectives"),
    ],
)
def test_a_run_without_peers_to_replay_is_declined(run, reason):
    with pytest.raises(InputError, match=reason):
        schedule_of(run)


def test_unknown_sizes_are_declined():
    replayed = Replayed.of(cpu_run())
    dfg = replace(replayed.built.dfg, bytes=np.full(replayed.built.dfg.nodes, -1))
    with pytest.raises(InputError, match="sizes of its collectives are unknown"):
        ghost_schedule(replace(replayed, built=replace(replayed.built, dfg=dfg)), 0)


def nccl_rank(late_us):
    """Three steps of 1 ms on a GPU; the all-reduce comes `late_us` after 100 µs, and takes 50 µs from that of rank 1."""
    rows = []
    for number in range(3):
        begin = 1000 * number
        described = {"in_elements": 500, "dtype": "Float", "group_ranks": [0, 1], "collective": "allreduce"}
        rows += [
            step(number, begin, begin + 1000),
            op("aten::mm", begin, 80 + late_us),
            *nccl(begin + 90 + late_us, begin + 100 + late_us, begin + 450, number, **described),
            call("cudaStreamSynchronize", begin + 100 + late_us, 360 - late_us, 10 + number),
            op("aten::item", begin + 460, 540),
        ]
    return rows


def test_kernels_of_a_gpu_have_a_schedule_too():
    run = run_of({0: nccl_rank(0), 1: nccl_rank(300)})
    schedule = schedule_of(run)
    (called,) = {one for each in schedule.steps for one in each.collectives}
    assert (called.kind, called.bytes, called.transfer_ns, called.last) == ("all_reduce", 2000, 50_000, 1)
    # From 400 µs of a step to 400 µs of the next.
    assert [since.work_ns for since in called.after] == [pytest.approx(1_000_000, rel=0.01)]


def test_a_rank_that_was_not_recorded_is_refused():
    with pytest.raises(UsageError, match="rank 7 is not in this run"):
        schedule_of(cpu_run(), 7)
