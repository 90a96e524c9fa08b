"""Parts, steps, names and events that a Run may lack."""

from dataclasses import replace

import msgspec
import numpy as np

from esprof.run.flight.log import FlightLog
from esprof.run.run import Window
from esprof.run.schema import SAMPLES, STEPS, table
from esprof.run.sharing import cuts
from esprof.run.sharing.contents import RunContents
from tests.cases.graph import EPOCH_NS, call, kernel, launched, op, run_of, step

ROWS = [
    step(1, 0, 100),
    op("aten::a", 0, 20),
    *launched("k_a", 5, 10, 40, 1),
    step(2, 100, 200),
    op("aten::b", 100, 20),
    *launched("k_b", 110, 120, 20, 2),
    *launched("k_b", 190, 205, 20, 3),
    step(3, 200, 300),
    op("aten::a", 200, 20),
]


def contents_of(rows=ROWS, **options):
    return RunContents.of(run_of({0: rows}, **options))


def names(contents, rank=0):
    return contents.tables["events", rank].texts("name")


def spans(first, last):
    return {0: (EPOCH_NS + first * 1000, EPOCH_NS + last * 1000)}


def test_a_run_may_lack_all_but_events_and_steps():
    samples = table({"at_ns": [1], "dur_ns": [1], "cpu_ns": [1], "step": [0], "stack": ["a"]}, SAMPLES)
    contents = contents_of()
    full = replace(contents, tables={**contents.tables, ("samples", 0): samples}, flights={0: FlightLog()})
    assert cuts.parts_of(full) == ["samples", "flight"]
    assert cuts.parts_of(cuts.without_parts(full, ["samples"])) == ["flight"]
    bare = cuts.without_parts(full, ["samples", "flight"])
    assert (bare.tables.keys(), bare.flights) == (contents.tables.keys(), {})


def test_steps_keep_the_work_that_they_launched():
    one = cuts.only_steps(contents_of(), [2], spans(100, 200))
    launches = ["cudaLaunchKernel", "k_b"]
    assert names(one) == ["ProfilerStep#2", "aten::b", *launches, *launches]
    assert one.tables["steps", 0].ints("step").tolist() == [2]
    assert one.meta.ranks[0].events == 6


def test_work_that_runs_when_the_steps_begin_stays():
    late = [step(1, 0, 100), *launched("k", 90, 95, 40, 1), step(2, 100, 200), op("aten::a", 110, 5)]
    assert names(cuts.only_steps(contents_of(late), [2], spans(100, 200))) == ["k", "ProfilerStep#2", "aten::a"]


def test_a_run_with_windows_gets_another_one():
    contents = contents_of(windows=(Window(first=1, last=3),))
    one = cuts.only_steps(contents, [2, 3], spans(100, 300))
    assert one.meta.ranks[0].windows == (Window(first=2, last=3),)


def test_steps_without_profiler_can_be_left_out():
    steps = {"step": [0, 1], "start_ns": [0, 10], "dur_ns": [10, 10], "phase": ["plain", "timed"]}
    contents = replace(contents_of(), tables={**contents_of().tables, ("steps", 0): table(steps, STEPS)})
    assert cuts.without_unprofiled(contents).tables["steps", 0].ints("step").tolist() == [1]


def test_side_tables_are_cut_to_the_window_and_the_time_before():
    at = [EPOCH_NS + us * 1000 for us in (-150, 50, 150, 350)]
    samples = table({"at_ns": at, "stack": list("abcd")}, SAMPLES)
    contents = replace(contents_of(), tables={**contents_of().tables, ("samples", 0): samples})

    def left(before):
        return cuts.sides_within(contents, spans(100, 200), before).tables["samples", 0].texts("stack")

    assert (left(0), left(1), left(3)) == (["c"], ["b", "c"], ["a", "b", "c"])
    some = cuts.without_side_rows(contents, [("samples", 0, 1), ("samples", 0, 2)])
    assert some.tables["samples", 0].texts("stack") == ["a", "d"]
    none = cuts.without_side_rows(contents, cuts.side_rows_of(contents))
    assert ("samples", 0) not in none.tables


def test_launches_go_with_their_work():
    contents = contents_of()
    assert cuts.names_of(contents)[0] == "k_b"  # Two kernels and two launches.
    assert "cudaLaunchKernel" not in cuts.names_of(contents)
    left = cuts.without_names(contents, ["k_b", "aten::a"])
    assert names(left) == [
        "ProfilerStep#1", "cudaLaunchKernel", "k_a", "ProfilerStep#2", "aten::b", "ProfilerStep#3"
    ]  # fmt: skip


def test_calls_without_work_have_their_own_names():
    rows = [step(1, 0, 100), call("cudaEventRecord", 5, 1, 7), kernel("k", 10, 5, 8)]
    assert set(cuts.names_of(contents_of(rows))) == {"ProfilerStep#1", "cudaEventRecord", "k"}


def test_single_events_are_left_out_with_their_launches():
    contents = contents_of()
    moments = cuts.moments_of(contents)
    assert len(moments) == len(set(moments)) == len(np.unique([start for _, start in moments]))
    late = (0, EPOCH_NS + 205 * 1000)
    left = cuts.without_moments(contents, [late])
    assert late in moments
    assert names(left).count("k_b") == names(left).count("cudaLaunchKernel") - 1 == 1
    assert msgspec.structs.asdict(left.meta.ranks[0])["events"] == contents.events - 2
