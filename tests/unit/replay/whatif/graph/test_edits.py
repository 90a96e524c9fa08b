"""Edits of graphs: each primitive worked by hand on a graph of a few nodes."""

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph import edits
from tests.cases.graph import ddp_rank, gloo, launched, node, op, run_of, step

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


def same(one, other):
    assert replay(one).step_ns().tolist() == replay(other).step_ns().tolist()
    assert one.nodes == other.nodes


def test_scale_divides_durations_and_nothing_else():
    dfg = chain()
    faster = edits.scale(dfg, [node(dfg, "b")], 2.0)
    assert end_ms(faster, "c") == 50
    assert faster.dur_ns[node(faster, "b")] == 10 * MS
    assert edits.scale(dfg, [node(dfg, "b")], 1.0) is dfg


def test_shorten_leaves_what_is_shorter():
    dfg = chain()
    assert replay(edits.shorten(dfg, dfg.dur_ns > 0, 15 * MS)).step_ns().tolist() == [40 * MS]


def test_replace_puts_other_work_in_the_place():
    dfg = chain()
    assert end_ms(edits.replace(dfg, [node(dfg, "a"), node(dfg, "b")], np.array([1, 2]) * MS), "c") == 33


def test_remove_closes_the_chain():
    dfg = chain()
    without = edits.remove(dfg, [node(dfg, "b")])
    assert without.nodes == dfg.nodes - 1
    assert end_ms(without, "c") == 40
    assert replay(without).step_ns().tolist() == [40 * MS]


def test_remove_keeps_every_path_through_what_is_removed():
    """Both ranks still wait for each other where the join and the transfers were."""
    dfg = build(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    without = edits.remove(dfg, (dfg.collective >= 0) & ~((dfg.rank >= 0) & dfg.of(Cls.WAIT)))
    kept = edits.shorten(dfg, dfg.of(Cls.COMMUNICATION), 0)
    assert replay(without).step_ns().tolist() == replay(kept).step_ns().tolist() == [46 * MS]


def test_insert_delays_what_follows_on_the_lane():
    dfg = chain()
    longer = edits.insert(dfg, [node(dfg, "a"), node(dfg, "c")], "cast", Cls.COMPUTE, [5 * MS, 7 * MS])
    assert longer.nodes == dfg.nodes + 2
    assert end_ms(longer, "c") == 65
    assert replay(longer).step_ns().tolist() == [72 * MS]


def test_insert_on_the_cpu_delays_a_launch_behind_it():
    dfg = gpu()
    first = next(n for n in range(dfg.nodes) if dfg.label(n).startswith("cudaLaunchKernel k1"))
    slower = edits.insert(dfg, [first], "check", Cls.CPU, [MS])
    timeline = replay(slower)
    assert timeline.start_ns[node(slower, "k2")] >= MS
    assert timeline.start_ns[node(slower, "k1")] < MS


def test_insert_on_a_link_delays_both_that_follow():
    """What comes next on the link, and the thread that came with the transfer: to its next collective."""
    rows = [step(1, 0, 60_000), op("forward", 0, 10_000), op("optimizer", 40_000, 20_000)]
    rows += [*gloo(9_000, 9_100, 20_000), *gloo(9_500, 20_100, 30_000)]
    dfg = build(run_of({0: rows, 1: rows}))
    mine = np.flatnonzero((dfg.rank == 0) & (dfg.collective >= 0))
    first, arrival = mine[1], mine[2]
    assert (dfg.cls[first], dfg.cls[arrival]) == (Cls.COMMUNICATION, Cls.WAIT)
    longer = edits.insert(dfg, [first], "unpack", Cls.CPU, [5 * MS])
    begin = replay(longer).start_ns[
        longer.of(Cls.WAIT, Cls.COMMUNICATION) & (longer.rank == 0) & (longer.collective >= 0)
    ]
    assert (begin / MS).tolist() == [9.1, 9.1, 25.1, 25.1]  # it takes 0.1 ms to come


def test_remove_leaves_the_borders_of_steps():
    """A border inside an operation is marked by the node before it."""
    rows = [step(1, 0, 30_000), op("a", 0, 10_000), op("b", 10_000, 20_000)]
    dfg = build(run_of({0: rows}))
    without = edits.remove(dfg, np.arange(dfg.nodes))
    assert without.nodes == 2
    assert replay(without).step_ns().tolist() == [0]


def test_relane_lets_the_neighbours_close_up():
    rows = [step(1, 0, 60_000), op("a", 0, 10_000), op("b", 10_000, 20_000), op("c", 30_000, 30_000)]
    dfg = build(run_of({0: [*rows, op("other", 0, 5, tid=77)]}))
    apart = edits.relane(dfg, [node(dfg, "b")], int(dfg.lane[node(dfg, "other")]))
    assert end_ms(apart, "c") == 40
    assert end_ms(apart, "b") == 30  # nothing else says when it can begin


def test_relane_lets_two_kernels_run_at_once():
    dfg = gpu()
    apart = edits.relane(dfg, [node(dfg, "k2")], int(dfg.lane[node(dfg, "k3")]))
    timeline = replay(apart)
    # No longer behind k1; k3, which is launched later, now waits for it.
    assert timeline.start_ns[node(apart, "k2")] < timeline.end_ns[node(apart, "k1")]
    assert timeline.start_ns[node(apart, "k3")] == timeline.end_ns[node(apart, "k2")]


def test_relane_to_the_same_lane_changes_nothing():
    dfg = build(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    comm = dfg.on(LaneKind.COMM) & (dfg.rank == 0)
    same(edits.relane(dfg, comm, int(dfg.lane[comm][0])), dfg)


def test_beside_keeps_the_order_of_both_parts():
    names = ("k1", "m1", "k2", "m2", "k3")
    kernels = [row for at, name in enumerate(names) for row in launched(name, at, 20 + 100 * at, 100, at + 1)]
    dfg = build(run_of({0: [step(1, 0, 600), op("aten::mm", 0, 30), *kernels]}))
    part = np.zeros(dfg.nodes, np.int64)
    part[[node(dfg, "m1"), node(dfg, "m2")]] = 1
    apart = edits.beside(dfg, part)
    timeline = replay(apart)
    start, end = (
        {name: int(times[node(apart, name)]) for name in names} for times in (timeline.start_ns, timeline.end_ns)
    )
    assert [start["k2"], start["k3"], start["m2"]] == [end["k1"], end["k2"], end["m1"]]
    assert start["m1"] < end["k1"]  # as soon as it is launched
    assert len(apart.lanes) == len(dfg.lanes) + 1


@pytest.mark.parametrize("edit", [lambda g: edits.remove(g, []), lambda g: edits.insert(g, [], "x", Cls.CPU, [])])
def test_an_edit_of_nothing_is_the_graph(edit):
    for dfg in (chain(), gpu(), build(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))):
        same(edit(dfg), dfg)


def test_an_edit_leaves_the_graph_that_it_was_given_alone():
    dfg = chain()
    before = dfg.dur_ns.copy()
    edits.remove(dfg, [node(dfg, "b")])
    edits.insert(dfg, [node(dfg, "b")], "x", Cls.CPU, [MS])
    assert (dfg.dur_ns == before).all()
    assert replay(dfg).step_ns().tolist() == [60 * MS]
