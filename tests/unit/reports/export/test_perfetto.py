"""Exports in Perfetto's format, read by a reader of its schema."""

import io
import itertools

import numpy as np
import pytest

from esprof.analyzers.tracks.track import ArrowEnds, Slices, Track, TrackProcess
from esprof.reports.export.perfetto import write_perfetto
from tests.cases import perfetto
from tests.cases.exported import cpu_run, exported
from tests.cases.graph import EPOCH_NS, nccl_ranks, run_of

MS = 1_000_000


def read(processes):
    file = io.BytesIO()
    write_perfetto(processes, file)
    return perfetto.read(file.getvalue())


@pytest.fixture(scope="module")
def trace():
    return read(exported(cpu_run(), "cpu=2x").processes())


def test_ranks_are_processes_in_order_and_lanes_are_threads(trace):
    names = sorted(trace.processes, key=trace.processes.get)
    assert names == [
        "job",
        "rank 0 (secret-host, CPU)", "rank 0 replayed", "rank 0 cpu=2x",
        "rank 1 (secret-host, CPU)", "rank 1 replayed", "rank 1 cpu=2x",
    ]  # fmt: skip
    threads = {name for process, name in trace.tracks.values() if process == "rank 0 replayed"}
    assert threads == {"main", "link"}


def test_slices_have_names_categories_times_and_nest(trace):
    inner = next(one for one in trace.on("rank 0 (secret-host, CPU)") if one.name == "secret::inner")
    assert inner.parents == ("ProfilerStep#0", "secret::forward")
    assert (inner.start - EPOCH_NS, inner.end - EPOCH_NS) == (MS, 3 * MS)
    assert (inner.category, inner.track) == ("cpu_op", "main (thread 1)")
    node = next(one for one in trace.on("rank 0 replayed", "main") if one.name == "secret::forward")
    assert (node.category, node.args["step"]) == ("compute", 0)
    assert (node.start - EPOCH_NS, node.end - EPOCH_NS) == (0, 10 * MS)


def test_the_critical_path_is_a_track_without_gaps(trace):
    path = trace.on("job", "critical path replayed")
    assert all(before.end == after.start for before, after in itertools.pairwise(path))
    assert {"compute", "communication"} <= {one.category for one in path}
    assert {one.args["rank"] for one in path} == {0, 1}


def test_memory_is_a_counter(trace):
    assert trace.counters["rank 1 (secret-host, CPU)", "resident set size"] == [
        (EPOCH_NS + 10 * MS, 2000),
        (EPOCH_NS + 60 * MS, 3000),
    ]


def test_flows_lead_from_the_late_rank_to_those_that_wait():
    trace = read(exported(run_of(nccl_ranks())).processes())
    waiting = next(one for one in trace.on("rank 0 replayed", "stream 20") if one.flows)
    flows = [trace.flow(number) for number in waiting.flows]
    ((source, _),) = [flow for flow in flows if flow[-1] is waiting]
    assert (source.process, source.track, source.category) == ("rank 1 replayed", "main", "launch")
    arrived = [one.flows for one in trace.on("rank 0 (here, CPU)", "stream 20")]
    assert [one.process for one in trace.flow(arrived[0][-1])][-1] == "rank 1 (here, CPU)"


def test_slices_that_cross_get_a_track_below_their_thread():
    start, end, code = np.array([0, 5, 12]), np.array([10, 15, 20]), np.arange(3)
    slices = Slices(
        start, end, code, ["a", "b", "c"], np.zeros(3, int), ["k"], {"note": ["x", None, None], "n": [1, -2, 3]}
    )
    trace = read([TrackProcess("p", "", True, [Track("stream 7", slices, ArrowEnds.none())])])
    assert [(one.track, one.name, one.start, one.end) for one in trace.slices] == [
        ("stream 7", "a", 0, 10), ("stream 7", "c", 12, 20), ("stream 7, row 2", "b", 5, 15),
    ]  # fmt: skip
    assert [one.args for one in trace.slices] == [{"note": "x", "n": 1}, {"n": 3}, {"n": -2}]
