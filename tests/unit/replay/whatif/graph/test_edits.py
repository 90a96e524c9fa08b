"""Edits of graphs: each primitive worked by hand on a graph of a few nodes."""

import numpy as np

from esprof.replay.building.build import build
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph import edits
from tests.cases.graph import ddp_rank, launched, node, op, run_of, step

MS = 1_000_000


def chain():
    """Three operations of 10, 20 and 30 ms."""
    rows = [step(1, 0, 60_000), op("a", 0, 10_000), op("b", 10_000, 20_000), op("c", 30_000, 30_000)]
    return build(run_of({0: rows}))


def gpu():
    """Two kernels of 100 µs on one stream, launched at 0 and 10 µs, and one of 50 µs on another, launched at 20 µs."""
    kernels = [
        *launched("k1", 0, 20, 100, 1),
        *launched("k2", 10, 120, 100, 2),
        *launched("k3", 20, 40, 50, 3, stream=9),
    ]
    rows = [step(1, 0, 400), op("aten::mm", 0, 30), *kernels]
    return build(run_of({0: rows}))


def end_ms(dfg, label):
    return replay(dfg).end_ns[node(dfg, label)] / MS


def test_scale_divides_durations_and_nothing_else():
    dfg = chain()
    faster = edits.scale(dfg, [node(dfg, "b")], 2.0)
    assert end_ms(faster, "c") == 50
    assert faster.dur_ns[node(faster, "b")] == 10 * MS
    assert edits.scale(dfg, [node(dfg, "b")], 1.0) is dfg


def test_shorten_leaves_shorter_nodes():
    dfg = chain()
    assert replay(edits.shorten(dfg, dfg.dur_ns > 0, 15 * MS)).step_ns().tolist() == [40 * MS]


def test_replace_changes_durations_only():
    dfg = chain()
    assert end_ms(edits.replace(dfg, [node(dfg, "a"), node(dfg, "b")], np.array([1, 2]) * MS), "c") == 33


def test_separate_lanes_keep_the_order_of_both_groups():
    names = ("k1", "m1", "k2", "m2", "k3")
    kernels = [row for at, name in enumerate(names) for row in launched(name, at, 20 + 100 * at, 100, at + 1)]
    dfg = build(run_of({0: [step(1, 0, 600), op("aten::mm", 0, 30), *kernels]}))
    part = np.zeros(dfg.nodes, np.int64)
    part[[node(dfg, "m1"), node(dfg, "m2")]] = 1
    apart = edits.on_separate_lanes(dfg, part)
    timeline = replay(apart)
    start, end = (
        {name: int(times[node(apart, name)]) for name in names} for times in (timeline.start_ns, timeline.end_ns)
    )
    assert [start["k2"], start["k3"], start["m2"]] == [end["k1"], end["k2"], end["m1"]]
    assert start["m1"] < end["k1"]  # as soon as it is launched
    assert len(apart.lanes) == len(dfg.lanes) + 1


def test_separate_lanes_without_a_group_leave_the_graph_unchanged():
    for dfg in (chain(), gpu(), build(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))):
        apart = edits.on_separate_lanes(dfg, np.zeros(dfg.nodes, np.int64))
        assert apart.nodes == dfg.nodes
        assert replay(apart).step_ns().tolist() == replay(dfg).step_ns().tolist()


def test_an_edit_leaves_the_graph_that_it_was_given_alone():
    dfg = gpu()
    before, lane = dfg.dur_ns.copy(), dfg.lane.copy()
    part = np.zeros(dfg.nodes, np.int64)
    part[node(dfg, "k2")] = 1
    edits.on_separate_lanes(dfg, part)
    edits.replace(dfg, [node(dfg, "k1")], np.array([MS]))
    assert (dfg.dur_ns == before).all()
    assert (dfg.lane == lane).all()
