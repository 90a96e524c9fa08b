"""Simpler rows, with less in them."""

from esprof.run.sharing import simpler
from esprof.run.sharing.contents import RunContents
from tests.cases.graph import EPOCH_NS, call, kernel, launched, numbered, op, run_of, step


def contents_of(*rows):
    return RunContents.of(run_of({0: [step(1, 0, 1000), *rows]}))


def column(contents, name):
    return contents.tables["events", 0].ints(name).tolist()


def test_columns_can_be_emptied():
    contents = contents_of(op("aten::a", 0, 5))
    assert {"tid", "pid", "thread_role"} <= set(simpler.columns_of(contents))
    assert not {"name", "kind", "start_ns", "dur_ns", "stream"} & set(simpler.columns_of(contents))
    bare = simpler.without_columns(contents, ["tid", "thread_role"])
    assert column(bare, "tid") == [-1, -1]
    assert not {"tid", "thread_role"} & set(simpler.columns_of(bare))


def test_begin_and_end_are_rounded():
    coarse = simpler.rounded(contents_of(op("aten::a", 12.4, 10.2), op("aten::b", 22.6, 1.3)), 1_000)
    assert [(start - EPOCH_NS) // 1000 for start in column(coarse, "start_ns")] == [0, 12, 23]
    assert column(coarse, "dur_ns") == [1_000_000, 11_000, 1_000]


def test_numbers_that_only_link_rows_are_small():
    sync = call("cudaStreamSynchronize", 50, 5, 9000)
    contents = contents_of(*launched("k", 10, 20, 5, 7000), sync, numbered("aten::a", 60, 1, 500))
    small = simpler.renumbered(contents)
    assert column(contents, "correlation").count(7000) == 2
    assert sorted(set(column(small, "correlation"))) in ([-1, 1, 2], [-1, 0, 1, 2])
    assert column(small, "correlation").count(1) == 2
    assert column(small, "autograd_seq")[-1] == 1
    nulls = [rows.arrow["correlation"].null_count for rows in (contents.tables["events", 0], small.tables["events", 0])]
    assert nulls[0] == nulls[1]


def test_neighbours_on_a_stream_become_one_with_the_first_launch():
    rows = [
        *launched("a", 10, 20, 10, 1),
        *launched("b", 16, 31, 10, 2),
        *launched("far", 22, 100, 10, 3),
        *launched("other", 40, 111, 10, 4, stream=8),
    ]
    joined = simpler.joined(contents_of(*rows), 5_000).tables["events", 0]
    assert joined.texts("name") == [
        "ProfilerStep#1", "cudaLaunchKernel", "a", "cudaLaunchKernel", "cudaLaunchKernel", "far", "other"
    ]  # fmt: skip
    assert joined.ints("dur_ns")[2] == 21_000


def test_copies_and_collectives_are_not_joined():
    rows = [
        *launched("a", 10, 20, 10, 1),
        call("cudaLaunchKernelExC", 16, 5, 2),
        kernel("ncclDevKernel_AllReduce", 30, 9, 2),
    ]
    contents = contents_of(*rows)
    assert simpler.joined(contents, 5_000).events == contents.events
