"""The longest path against plain Python, on random graphs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.engine.longest_path import ends, residuals, run
from tests.cases.properties import thorough
from tests.cases.random_graphs import dfg_of, graphs, longest_path


@thorough(200)
@given(graphs())
def test_the_forward_pass_is_the_longest_path(dfg):
    start, end = run(dfg, dfg.dur_ns, dfg.residual_ns)
    assert end.tolist() == longest_path(dfg, dfg.dur_ns, dfg.residual_ns)
    assert (end - start == dfg.dur_ns).all()


@thorough(200)
@given(graphs())
def test_residuals_are_never_negative_and_restore_every_recorded_start_that_was_possible(dfg):
    residual = residuals(dfg.dur_ns, dfg.recorded_ns, dfg.pred_ptr, dfg.pred_idx, dfg.pred_lag)
    assert (residual >= 0).all()
    start, _ = run(dfg, dfg.dur_ns, residual)
    assert (start >= dfg.recorded_ns).all()
    assert (start[residual > 0] == dfg.recorded_ns[residual > 0]).all()


@thorough(200)
@given(graphs(), st.integers(0, 10_000))
def test_longer_work_never_ends_sooner(dfg, seed):
    more = np.random.default_rng(seed).integers(0, 30, dfg.nodes)
    end = ends(dfg, dfg.dur_ns, dfg.residual_ns)
    assert (ends(dfg, dfg.dur_ns + more, dfg.residual_ns) >= end).all()
    assert (ends(dfg, dfg.dur_ns, dfg.residual_ns + more) >= end).all()


def test_a_node_waits_for_all_before_it_and_only_one_without_any_for_its_recorded_start():
    dfg = dfg_of([0, 1, 2], [10, 20, 5], [(0, 2, 4), (1, 2, -3)], recorded=[100, 90, 500], residual=[0, 0, 2])
    start, end = run(dfg, dfg.dur_ns, dfg.residual_ns)
    assert start.tolist() == [100, 90, max(110 + 4, 110 - 3) + 2]
    assert end.tolist() == [110, 110, 121]
