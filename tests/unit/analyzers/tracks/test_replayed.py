"""Tracks of replayed graphs, and the arrows between their slices."""

import numpy as np

from esprof.analyzers.tracks.replayed import ReplayTracks, arrows, lane_labels
from esprof.analyzers.tracks.track import ArrowEnd, ArrowKind
from esprof.replay.building.build import build
from esprof.replay.dfg import Edge
from esprof.replay.engine.timeline import replay
from tests.cases.graph import launched, nccl_ranks, op, run_of, step


def timeline_of(ranks):
    return replay(build(run_of(ranks)))


def named_arrows(timeline):
    dfg = timeline.dfg
    drawn = (dfg.dur_ns > 0) & (dfg.lane >= 0)
    return {
        ((int(dfg.rank[source]), dfg.label(source)), (int(dfg.rank[target]), dfg.label(target)), Edge(kind))
        for source, target, kind in zip(*(column.tolist() for column in arrows(timeline, drawn)), strict=True)
    }


def test_a_kernel_waits_for_its_launch():
    timeline = timeline_of({0: [step(1, 0, 500), op("aten::mm", 0, 100), *launched("mm", 20, 40, 300, 1)]})
    assert ((0, "cudaLaunchKernel mm"), (0, "mm"), Edge.LAUNCH) in named_arrows(timeline)


def test_all_ranks_of_a_collective_wait_for_the_last():
    late = (1, "cudaLaunchKernelExC ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    waiting = (0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert (late, waiting, Edge.RENDEZVOUS) in named_arrows(timeline_of(nccl_ranks()))


def test_both_ends_of_an_arrow_have_its_id_and_kind():
    timeline = timeline_of(nccl_ranks())
    tracks = ReplayTracks.of("replayed", timeline, timeline.dfg.marks.steps, first_id=10)
    ends = {}
    for rank in (0, 1):
        process = tracks.process(rank)
        assert process.name == f"rank {rank} replayed"
        for track in process.tracks:
            starts = track.slices.start_ns.tolist()
            assert starts == sorted(starts)
            for at, found in track.arrows.by_slice().items():
                for number, end, kind in found:
                    ends.setdefault(number, {})[end] = (rank, track.name, starts[at], kind)
    assert min(ends) >= 10
    assert all(set(both) == {ArrowEnd.SOURCE, ArrowEnd.TARGET} for both in ends.values())
    assert all(both[ArrowEnd.SOURCE][2] <= both[ArrowEnd.TARGET][2] for both in ends.values())
    between = [both for both in ends.values() if both[ArrowEnd.SOURCE][0] != both[ArrowEnd.TARGET][0]]
    assert {both[ArrowEnd.TARGET][3] for both in between} == {ArrowKind.COLLECTIVE}


def test_slices_are_the_nodes_with_a_duration():
    timeline = timeline_of(nccl_ranks())
    dfg = timeline.dfg
    tracks = ReplayTracks.of("replayed", timeline, dfg.marks.steps, first_id=1)
    slices = [track.slices for rank in (0, 1) for track in tracks.process(rank).tracks]
    assert sum(map(len, slices)) == np.count_nonzero((dfg.dur_ns > 0) & (dfg.lane >= 0) & (dfg.step >= 0))
    total = sum(int((one.end_ns - one.start_ns).sum()) for one in slices)
    assert total == dfg.dur_ns[(dfg.lane >= 0) & (dfg.step >= 0)].sum()


def test_lanes_of_one_role_are_numbered():
    rows = [step(1, 0, 100), *(op("aten::mm", 0, 50, tid=tid) for tid in (1, 2, 3))]
    labels = lane_labels(build(run_of({0: rows, 1: rows})))
    assert labels.count("other") == 2
    assert labels.count("other 2") == 2
