"""Paths between cuts, against the longest paths of the whole graph."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.engine.reach import Reach
from tests.cases.properties import thorough
from tests.cases.random_graphs import dfg_of, graphs


def test_paths_end_at_the_first_cut_and_lead_through_open_nodes_only():
    edges = [(0, 1, 5), (1, 2, 1), (2, 3, 0), (3, 5, 0), (0, 4, 0), (4, 5, 0)]
    dfg = dfg_of([0] * 6, [100, 10, 0, 10, 1000, 0], edges, residual=[0, 3, 7, 0, 0, 0])
    reach = Reach(dfg, np.array([1, 0, 1, 0, 0, 1], bool), np.array([1, 1, 1, 1, 0, 1], bool))
    assert reach.from_node(0, 6) == {2: 5 + 3 + 10 + 1}
    assert reach.from_node(2, 6) == {5: 10}
    assert reach.from_node(0, 2) == {}


def longest_from(dfg, source):
    """Time from the end of `source` to the start of each node that it leads to."""
    found = {}
    for node in range(source + 1, dfg.nodes):
        edges = range(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])
        for before, lag in ((int(dfg.pred_idx[edge]), int(dfg.pred_lag[edge])) for edge in edges):
            if before == source or before in found:
                delay = 0 if before == source else int(dfg.residual_ns[before] + dfg.dur_ns[before])
                found[node] = max(found.get(node, -(2**62)), found.get(before, 0) + delay + lag)
    return found


@thorough(200)
@given(graphs(), st.data())
def test_paths_from_cut_to_cut_add_up_to_the_longest_paths(dfg, data):
    is_cut = np.array(data.draw(st.lists(st.booleans(), min_size=dfg.nodes, max_size=dfg.nodes)), bool)
    reach, cuts = Reach(dfg, is_cut, np.ones(dfg.nodes, bool)), np.flatnonzero(is_cut).tolist()
    for source in cuts:
        added = {source: 0}
        for before in cuts:
            if before in added:
                delay = 0 if before == source else int(dfg.residual_ns[before] + dfg.dur_ns[before])
                for cut, length in reach.from_node(before, dfg.nodes).items():
                    added[cut] = max(added.get(cut, -(2**62)), added[before] + delay + length)
        assert added == {source: 0} | {cut: ns for cut, ns in longest_from(dfg, source).items() if is_cut[cut]}
