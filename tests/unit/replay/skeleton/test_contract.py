"""Skeletons against the longest paths of the whole graph."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.synthetic import job
from esprof.replay.dfg import JOIN_LANE
from esprof.replay.engine.timeline import replay
from esprof.replay.skeleton.contract import MAX_SOURCES, contract
from tests.cases.properties import thorough
from tests.cases.random_graphs import dfg_of, graphs


def edges_of(skeleton):
    """(source, target, lag) of each edge, by nodes of the whole graph; -1 is the origin."""
    dfg = skeleton.dfg
    return list(
        zip(
            skeleton.node[dfg.pred_idx].tolist(), skeleton.node[dfg.pred_target].tolist(), dfg.pred_lag.tolist(),
            strict=True,
        )
    )  # fmt: skip


def test_an_edge_is_the_longest_path_that_passes_no_cut():
    edges = [(0, 1, 5), (1, 3, 1), (0, 2, 0), (2, 3, 0), (3, 4, 0), (4, 5, 2)]
    dfg = dfg_of([0] * 6, [100, 10, 14, 10, 1000, 0], edges, residual=[0, 3, 7, 0, 0, 0])
    skeleton = contract(dfg, np.array([0, 0, 0, 1, 0, 0], bool))
    # The first and the last node are those of the step.
    assert skeleton.node.tolist() == [-1, 0, 3, 5]
    assert edges_of(skeleton) == [(0, 3, 7 + 14), (3, 5, 1000 + 2)]


def test_a_node_without_predecessor_starts_at_its_recorded_start():
    dfg = dfg_of([0, 0, 1], [10, 20, 30], [(0, 2, 0), (1, 2, 0)], recorded=[5, 100, 0])
    skeleton = contract(dfg, np.zeros(3, bool))
    assert edges_of(skeleton) == [(-1, 2, 100 + 20), (0, 2, 0)]
    assert replay(skeleton.dfg).end_ns.tolist() == [0, 15, 150]


def test_a_node_that_many_cuts_reach_becomes_one():
    many = MAX_SOURCES + 1
    dfg = dfg_of([0] * (many + 2), [1] * (many + 2), [(n, many, n) for n in range(many)] + [(many, many + 1, 3)])
    is_cut = np.arange(dfg.nodes) < many
    skeleton = contract(dfg, is_cut)
    assert skeleton.node[1:].tolist() == list(range(many + 2))
    assert (many, many + 1, 3) in edges_of(skeleton)
    assert is_cut.sum() == many  # The argument stays as it is.


def test_a_path_as_long_through_another_cut_is_no_edge():
    """A what-if may shorten the other cut to nothing."""
    edges = [(0, 1, 0), (1, 2, 0)]
    short, long = (dfg_of([0] * 4, [1, 10, 5, 1], [*edges, (0, 3, lag), (2, 3, 0)]) for lag in (10, 11))
    is_cut = np.array([1, 0, 1, 1], bool)
    assert edges_of(contract(short, is_cut)) == [(0, 2, 10), (2, 3, 0)]
    assert edges_of(contract(long, is_cut)) == [(0, 2, 10), (0, 3, 11), (2, 3, 0)]


def test_the_lag_of_an_edge_may_be_longer_than_two_seconds():
    dfg = dfg_of([0] * 3, [1, 10**10, 1], [(0, 1, 0), (1, 2, 0)])
    assert edges_of(contract(dfg, np.zeros(3, bool))) == [(0, 2, 10**10)]


@thorough(500)
@given(graphs(), st.data())
def test_cuts_end_when_they_do_in_the_whole_graph(dfg, data):
    is_cut = np.array(data.draw(st.lists(st.booleans(), min_size=dfg.nodes, max_size=dfg.nodes)), bool)
    skeleton = contract(dfg, is_cut)
    assert set(np.flatnonzero(is_cut)) <= set(skeleton.node)
    of_cuts, of_all = replay(skeleton.dfg), replay(dfg)
    assert of_cuts.end_ns[1:].tolist() == of_all.end_ns[skeleton.node[1:]].tolist()
    assert of_cuts.start_ns[1:].tolist() == of_all.start_ns[skeleton.node[1:]].tolist()


@thorough(500)
@given(graphs(), st.data())
def test_cuts_that_are_changed_end_when_they_do_in_the_whole_graph(dfg, data):
    is_cut = np.array(data.draw(st.lists(st.booleans(), min_size=dfg.nodes, max_size=dfg.nodes)), bool)
    other = np.array(data.draw(st.lists(st.integers(0, 60), min_size=dfg.nodes, max_size=dfg.nodes)))
    skeleton = contract(dfg, is_cut)
    changed = replace(dfg, dur_ns=np.where(is_cut, other, dfg.dur_ns))
    dur_ns = np.append(0, changed.dur_ns[skeleton.node[1:]])
    end_ns = replay(replace(skeleton.dfg, dur_ns=dur_ns)).end_ns[1:]
    assert end_ns.tolist() == replay(changed).end_ns[skeleton.node[1:]].tolist()


@pytest.mark.parametrize("workers", [1, 7])
def test_the_steps_of_a_job_that_meets_in_collectives_keep_their_length(workers):
    dfg = job(5_000, workers)
    skeleton = contract(dfg, dfg.lane == JOIN_LANE)
    assert skeleton.dfg.nodes < dfg.nodes / 4
    assert replay(skeleton.dfg).step_ns().tolist() == replay(dfg).step_ns().tolist()
