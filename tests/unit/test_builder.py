"""The builder: topological order, cycles, keys."""

import numpy as np
import pytest

from esprof.errors import InputError
from esprof.replay.builder import GraphBuilder
from esprof.replay.dfg import Cls, Edge, StepMarks


def compiled(builder: GraphBuilder):
    return builder.compile(StepMarks((0,), (0,), np.array([[0]]), np.array([[len(builder.start) - 1]])))


def two_lanes() -> tuple[GraphBuilder, int, int]:
    builder = GraphBuilder()
    return builder, builder.add_lane(0, "cpu", "main"), builder.add_lane(0, "cpu", "other")


def test_a_cycle_of_guesses_loses_its_guesses_and_says_so():
    builder, main, other = two_lanes()
    a = builder.add(main, "a", Cls.CPU, 0, 10)
    b = builder.add(other, "b", Cls.CPU, 5, 10)
    builder.link(a, b, Edge.LAUNCH)
    builder.link(b, a, Edge.INFERRED)
    dfg = compiled(builder)
    assert dfg.edges == 1
    assert builder.counts["edges_dropped"] == 1


def test_what_follows_a_cycle_keeps_its_guesses():
    builder, main, other = two_lanes()
    a = builder.add(main, "a", Cls.CPU, 0, 10)
    b = builder.add(other, "b", Cls.CPU, 5, 10)
    later = builder.add(main, "later", Cls.CPU, 40, 10)
    builder.link(a, b, Edge.LAUNCH)
    builder.link(b, a, Edge.INFERRED)
    builder.link(b, later, Edge.INFERRED)
    assert compiled(builder).edges == 3
    assert (b, later) in builder.edges


def test_collectives_that_can_only_be_matched_wrongly_come_apart():
    builder, main, other = two_lanes()
    a = builder.add(main, "a", Cls.CPU, 0, 10)
    b = builder.add(other, "b", Cls.CPU, 5, 10)
    builder.link(a, b, Edge.RENDEZVOUS)
    builder.link(b, a, Edge.LAUNCH)
    assert compiled(builder).edges == 1


def test_a_cycle_of_recorded_edges_is_an_error():
    builder, main, other = two_lanes()
    a = builder.add(main, "a", Cls.CPU, 0, 10)
    b = builder.add(other, "b", Cls.CPU, 5, 10)
    builder.link(a, b, Edge.LAUNCH)
    builder.link(b, a, Edge.SYNC)
    with pytest.raises(InputError, match="cycle"):
        compiled(builder)


def test_the_stricter_of_two_edges_stays():
    builder, main, other = two_lanes()
    a = builder.add(main, "a", Cls.CPU, 0, 10)
    b = builder.add(other, "b", Cls.CPU, 50, 10)
    builder.link(a, b, Edge.WAIT, -5)
    builder.link(a, b, Edge.SYNC, 20)
    builder.link(a, b, Edge.WAIT, 7)
    assert builder.edges == {(a, b): (20, Edge.SYNC)}


def test_ties_are_broken_by_insertion_so_that_order_never_depends_on_chance():
    builder, main, other = two_lanes()
    names = [
        builder.add(lane, name, Cls.CPU, 0, 0, chain=False) for lane, name in ((main, "x"), (other, "y"), (main, "z"))
    ]
    dfg = compiled(builder)
    assert [dfg.label(node) for node in range(3)] == ["x", "y", "z"]
    assert names == [0, 1, 2]


def test_counterparts_share_a_key_and_repeats_do_not():
    builder = GraphBuilder()
    lanes = [builder.add_lane(rank, "cpu", "main") for rank in (0, 1)]
    nodes = {}
    for rank, lane in enumerate(lanes):
        for name in ("a", "b", "a", "b"):
            nodes[rank, len(nodes) % 4] = builder.add(lane, name, Cls.CPU, len(nodes), 1, step=3)
    dfg = compiled(builder)
    keys = {rank: dfg.key[dfg.rank == rank].tolist() for rank in (0, 1)}
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 4


def test_the_networkx_view_is_bounded_and_says_why_nodes_wait():
    builder, main, other = two_lanes()
    a = builder.add(main, "a", Cls.CPU, 0, 10)
    b = builder.add(other, "b", Cls.COMPUTE, 12, 10)
    builder.link(a, b, Edge.LAUNCH, 2)
    graph = compiled(builder).to_networkx(limit=2)
    assert graph.edges[0, 1] == {"kind": "launch", "lag_ns": 2}
    assert graph.nodes[1]["cls"] == "compute"
    assert len(compiled(builder).to_networkx(limit=1)) == 1
