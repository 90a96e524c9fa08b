"""Nodes and edges as one graph: counterparts, numbering, the view for people."""

import numpy as np

from esprof.replay.building.assemble import graph_of
from esprof.replay.building.node_records import edges_of, nodes_of
from esprof.replay.dfg import JOIN_LANE, Cls, Dfg, Edge, Lane, LaneKind, StepMarks
from esprof.replay.engine import topology

NAMES = ("a", "b", "gap")


def graph(
    lanes: list[Lane], nodes: list[tuple[int, str, int, int]], edges: list[tuple[int, int, int]] = (), **columns: object
) -> Dfg:
    """A graph of nodes (lane, name, start, duration) and edges (source, target, lag)."""
    lane, name, start, dur = zip(*nodes, strict=True)
    columns = {"name": [NAMES.index(one) for one in name], "cls": Cls.CPU, "step": 3} | columns
    records = nodes_of(len(nodes), lane=lane, start_ns=start, dur_ns=dur, **{"cls": Cls.CPU, "step": 3} | columns)
    source, target, lag = np.array(edges, np.int64).reshape(-1, 3).T
    marks = StepMarks((3,), (0,), np.array([[0]]), np.array([[len(nodes) - 1]]))
    in_order = topology.sort(records["start_ns"], edges_of(source, target, Edge.LAUNCH, lag))
    return graph_of(records, in_order, lanes, NAMES, marks)


def mains(ranks: int) -> list[Lane]:
    return [Lane(rank, LaneKind.CPU, "main") for rank in range(ranks)]


def test_counterparts_share_a_key_and_repeats_do_not():
    dfg = graph(mains(2), [(rank, name, at, 1) for rank in (0, 1) for at, name in enumerate("abab")])
    keys = [dfg.key[dfg.rank == rank].tolist() for rank in (0, 1)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 4


def test_a_step_repeats_the_keys_of_the_one_before():
    dfg = graph(mains(1), [(0, "a", 0, 1), (0, "b", 1, 1), (0, "a", 2, 1), (0, "b", 3, 1)], step=[3, 3, 4, 4])
    assert dfg.key[dfg.step == 3].tolist()[1] == dfg.key[dfg.step == 4].tolist()[1]


def test_a_gap_on_one_rank_changes_no_later_key():
    nodes = [(0, "a", 0, 1), (0, "gap", 1, 1), (0, "b", 2, 1), (1, "a", 0, 1), (1, "b", 1, 1)]
    dfg = graph(mains(2), nodes, cls=[Cls.CPU, Cls.HOST_GAP, Cls.CPU, Cls.CPU, Cls.CPU])
    of_b = dfg.key[[dfg.label(node) == "b" for node in range(dfg.nodes)]]
    assert of_b[0] == of_b[1]


def test_the_same_work_on_lanes_of_other_roles_is_no_counterpart():
    dfg = graph([Lane(0, LaneKind.CPU, "main"), Lane(0, LaneKind.CPU, "autograd")], [(0, "a", 0, 1), (1, "a", 0, 1)])
    assert dfg.key[0] != dfg.key[1]


def test_a_join_is_on_no_lane_and_has_no_counterpart():
    dfg = graph(mains(1), [(0, "a", 0, 1), (JOIN_LANE, "b", 1, 0)])
    join = int(np.flatnonzero(dfg.lane == JOIN_LANE)[0])
    assert (dfg.key[join], dfg.rank[join]) == (-1, -1)


def test_marks_follow_their_nodes():
    dfg = graph(mains(2), [(0, "b", 9, 1), (1, "a", 0, 1)])
    assert (dfg.marks.first.tolist(), dfg.marks.last.tolist()) == ([[1]], [[0]])
    assert dfg.recorded_ns.tolist() == [0, 9]


def test_time_that_edges_do_not_explain_is_residual():
    dfg = graph(mains(2), [(0, "a", 0, 10), (1, "b", 25, 5)], [(0, 1, 3)])
    assert dfg.residual_ns.tolist() == [0, 12]
