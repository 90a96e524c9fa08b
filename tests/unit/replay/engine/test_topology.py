"""Topological order, cycles, and predecessors, on graphs of a few nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.errors import InputError
from esprof.replay.building.node_records import edges_of, joined
from esprof.replay.dfg import Edge
from esprof.replay.engine import topology
from tests.cases.properties import thorough


def edge(source: int, target: int, kind: Edge = Edge.WAIT, lag: int = 0) -> np.ndarray:
    return edges_of(np.array([source]), np.array([target]), kind, lag)


def sort(starts: list[int], *edges: np.ndarray):
    none = edges_of(np.zeros(0), np.zeros(0), Edge.LANE)
    found = topology.sort(np.array(starts), joined([*edges, none]))
    return found.order.tolist(), found.predecessors, found.dropped.tolist()


def test_the_earliest_start_comes_first_and_ties_are_broken_by_number():
    order, _, _ = sort([5, 0, 0, 3])
    assert order == [1, 2, 3, 0]


def test_no_node_precedes_its_predecessors():
    order, before, _ = sort([0, 1, 2], edge(2, 0))
    assert order == [1, 2, 0]
    assert before.ptr.tolist() == [0, 0, 0, 1]
    assert before.idx.tolist() == [1]


def test_a_cycle_of_guesses_loses_its_guesses_and_says_so():
    order, before, dropped = sort([0, 5], edge(0, 1, Edge.LAUNCH), edge(1, 0, Edge.BY_TIME))
    assert order == [0, 1]
    assert before.kind.tolist() == [Edge.LAUNCH]
    assert dropped == [Edge.BY_TIME]


def test_nodes_after_a_cycle_keep_their_guesses():
    edges = (edge(0, 1, Edge.LAUNCH), edge(1, 0, Edge.BY_TIME), edge(1, 2, Edge.BY_TIME), edge(0, 2, Edge.LANE))
    _, before, dropped = sort([0, 5, 40], *edges)
    assert before.kind.tolist() == [Edge.LAUNCH, Edge.LANE, Edge.BY_TIME]
    assert dropped == [Edge.BY_TIME]


def test_wrongly_matched_collectives_are_separated():
    _, before, dropped = sort([0, 5], edge(0, 1, Edge.RENDEZVOUS), edge(1, 0, Edge.LAUNCH))
    assert (before.kind.tolist(), dropped) == ([Edge.LAUNCH], [Edge.RENDEZVOUS])


def test_guessed_stream_waits_are_dropped_before_recorded_ones():
    _, before, dropped = sort([0, 5], edge(0, 1, Edge.WAIT), edge(1, 0, Edge.LIKELY_WAIT))
    assert (before.kind.tolist(), dropped) == ([Edge.WAIT], [Edge.LIKELY_WAIT])
    _, before, dropped = sort([0, 5], edge(0, 1, Edge.LAUNCH), edge(1, 0, Edge.WAIT))
    assert (before.kind.tolist(), dropped) == ([Edge.LAUNCH], [Edge.WAIT])


def test_a_cycle_of_recorded_edges_is_an_error():
    with pytest.raises(InputError, match="cycle"):
        sort([0, 5], edge(0, 1, Edge.LAUNCH), edge(1, 0, Edge.LANE))


def test_a_wait_for_later_work_is_dropped_before_launches():
    _, before, dropped = sort([0, 5], edge(0, 1, Edge.LAUNCH), edge(1, 0, Edge.SYNC))
    assert (before.kind.tolist(), dropped) == ([Edge.LAUNCH], [Edge.SYNC])


def test_the_strictest_of_several_edges_is_retained():
    edges = (
        edge(0, 1, Edge.WAIT, -5),
        edge(0, 1, Edge.SYNC, 20),
        edge(0, 1, Edge.THREAD, 20),
        edge(0, 1, Edge.WAIT, 7),
    )
    _, before, _ = sort([0, 50], *edges)
    assert (before.lag.tolist(), before.kind.tolist()) == ([20], [Edge.SYNC])


def test_a_lag_too_long_to_store_is_clamped_and_counted():
    found = topology.sort(np.array([0, 50]), edge(0, 1, lag=2**40))
    assert found.predecessors.lag.tolist() == [2**31 - 1]
    assert found.clamped == 1


def test_no_node_waits_for_itself_or_for_none():
    assert len(joined([edge(3, 3), edge(-1, 3), edge(3, -1)])) == 0


@st.composite
def graphs(draw):
    """Starts and acyclic edges in any order, some of them twice."""
    nodes = draw(st.integers(1, 12))
    names = draw(st.permutations(range(nodes)))
    pairs = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=30))
    edges = [(names[min(pair)], names[max(pair)], draw(st.integers(-9, 9))) for pair in pairs if pair[0] != pair[1]]
    return draw(st.lists(st.integers(0, 20), min_size=nodes, max_size=nodes)), edges


@thorough(200)
@given(graphs())
def test_sorting_is_kahns_algorithm_and_keeps_every_edge(graph):
    starts, edges = graph
    order, before, _ = sort(starts, *(edge(source, target, lag=lag) for source, target, lag in edges))
    missing = {node: {source for source, target, _ in edges if target == node} for node in range(len(starts))}
    expected: list[int] = []
    while len(expected) < len(starts):
        ready = [node for node in missing if node not in expected and missing[node] <= set(expected)]
        expected.append(min(ready, key=lambda node: (starts[node], node)))
    assert order == expected
    found = {}
    for node in range(len(starts)):
        sources = before.idx[before.ptr[node] : before.ptr[node + 1]].tolist()
        assert sources == sorted(set(sources))
        lags = before.lag[before.ptr[node] : before.ptr[node + 1]].tolist()
        found |= {(order[source], order[node]): lag for source, lag in zip(sources, lags, strict=True)}
    strictest: dict[tuple[int, int], int] = {}
    for source, target, lag in edges:
        strictest[source, target] = max(lag, strictest.get((source, target), lag))
    assert found == strictest
