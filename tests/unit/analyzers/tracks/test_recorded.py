"""Tracks of recorded events."""

import numpy as np
import pytest

from esprof.analyzers.tracks.track import ArrowEnd, ArrowKind
from tests.cases.exported import cpu_run, exported
from tests.cases.graph import EPOCH_NS, call, kernel, launched, load_call, nccl_ranks, op, run_of, stage, step


def process(content, name):
    return next(one for one in content.processes() if one.name == name)


def slices_of(track):
    slices = track.slices
    return [
        (slices.names[name], slices.categories[category], (start - EPOCH_NS) // 1000, (end - EPOCH_NS) // 1000)
        for name, category, start, end in zip(
            *(column.tolist() for column in (slices.name, slices.category, slices.start_ns, slices.end_ns)), strict=True
        )
    ]


def gpu_rank():
    return [
        step(1, 0, 500),
        op("aten::mm", 0, 100),
        *launched("mm", 20, 40, 200, 7),
        call("cudaGraphLaunch", 110, 5, 8),
        kernel("first", 240, 20, 8),
        kernel("second", 260, 20, 8, stream=9),
        op("aten::relu", 30, 10, tid=2),
    ]


def test_events_are_on_the_track_of_their_thread_or_stream():
    tracks = {track.name: slices_of(track) for track in process(exported(run_of({0: gpu_rank()})), "rank 0").tracks}
    assert list(tracks) == ["main (thread 1)", "other (thread 2)", "stream 7", "stream 9"]
    assert tracks["main (thread 1)"][:3] == [
        ("ProfilerStep#1", "user_annotation", 0, 500),
        ("aten::mm", "cpu_op", 0, 100),
        ("cudaLaunchKernel", "cuda_runtime", 20, 25),
    ]
    assert tracks["stream 7"] == [("mm", "kernel", 40, 240), ("first", "kernel", 240, 260)]


def test_arrows_lead_from_a_launch_to_all_its_work():
    ends = {}
    for track in process(exported(run_of({0: gpu_rank()})), "rank 0").tracks:
        for at, found in track.arrows.by_slice().items():
            for number, end, kind in found:
                assert kind is ArrowKind.LAUNCH
                ends.setdefault(number, {})[end] = slices_of(track)[at][0]
    pairs = sorted((both[ArrowEnd.SOURCE], both[ArrowEnd.TARGET]) for both in ends.values())
    assert pairs == [("cudaGraphLaunch", "first"), ("cudaGraphLaunch", "second"), ("cudaLaunchKernel", "mm")]


def test_the_arrow_of_a_collective_passes_the_ranks_in_order_of_arrival():
    content = exported(run_of(nccl_ranks()))
    seen = []
    for rank in (0, 1):
        for track in process(content, f"rank {rank}").tracks:
            for found in track.arrows.by_slice().values():
                seen += [(rank, track.name, number, end) for number, end, kind in found if kind == "collective"]
    ((_, _, number, _), _) = seen
    assert seen == [(0, "stream 20", number, ArrowEnd.SOURCE), (1, "stream 20", number, ArrowEnd.TARGET)]


def test_an_arrow_is_of_one_timeline():
    timelines = {}
    for one in exported(run_of(nccl_ranks()), "cpu=2x").processes():
        for track in one.tracks:
            for number in track.arrows.id.tolist():
                timelines.setdefault(number, set()).add(one.name.removeprefix("rank 0").removeprefix("rank 1"))
    assert {name for names in timelines.values() for name in names} == {"", " replayed", " cpu=2x"}
    assert all(len(names) == 1 for names in timelines.values())


def test_one_step_has_the_events_that_ran_in_it_or_were_launched_in_it():
    rows = [step(1, 0, 100), *launched("late", 50, 90, 40, 1), step(2, 100, 200), *launched("next", 110, 130, 20, 2)]
    content = exported(run_of({0: rows}), step=2)
    assert [slices_of(track) for track in process(content, "rank 0").tracks if track.name == "stream 7"] == [
        [("late", "kernel", 90, 130), ("next", "kernel", 130, 150)]
    ]
    (steps, *_) = process(content, "job").tracks
    assert slices_of(steps) == [("step 2", "step", 100, 200)]


def test_batches_are_on_the_track_of_their_worker():
    rows = [step(1, 0, 100), load_call(10, 40), op("aten::mm", 40, 50)]
    made = [stage("fetch", 0, -50, -20), stage("fetch", 1, 5, 38), stage("next", 1, 10, 40)]
    tracks = process(exported(run_of({0: rows}, stages={0: made})), "rank 0").tracks
    assert [slices_of(track) for track in tracks if track.name == "loader worker 0"] == [
        [("batch 1", "esprof,batch", 5, 38)]
    ]


def test_memory_sampled_within_the_steps_is_a_counter():
    (counter,) = process(exported(cpu_run()), "rank 1").counters
    assert counter.name == "resident set size"
    assert counter.values.tolist() == [2000, 3000]
    assert np.array_equal(counter.at_ns, EPOCH_NS + np.array([10, 60]) * 1_000_000)


@pytest.mark.parametrize(("rank", "about"), [(0, "secret-host, CPU"), (1, "secret-host, CPU")])
def test_a_rank_says_where_it_ran(rank, about):
    assert process(exported(cpu_run()), f"rank {rank}").about == about
