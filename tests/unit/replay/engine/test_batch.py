"""Batches of scenarios against replays one by one, on random graphs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.engine import longest_path
from esprof.replay.engine.batch import Batch
from tests.cases.properties import thorough
from tests.cases.random_graphs import dfg_of, graphs

CLASSES = 4
FACTORS = st.sampled_from([1.0, 2.0, 0.5, 3.0, 0.3, 1.1, 7.77, np.inf])


@st.composite
def scenarios(draw, longest: int = 1000):
    """A graph, a table of factors, and the class of each node's duration and residual."""
    dfg = draw(graphs(longest=longest))
    count = draw(st.integers(1, 5))
    table = np.array(draw(st.lists(FACTORS, min_size=CLASSES * count, max_size=CLASSES * count)))
    classes = st.lists(st.integers(-1, CLASSES - 1), min_size=dfg.nodes, max_size=dfg.nodes)
    return dfg, table.reshape(CLASSES, count), np.array(draw(classes)), np.array(draw(classes))


def scaled(times, classes, factor):
    return np.where(classes < 0, times, np.rint(times / factor[classes])).astype(np.int64)


def one_by_one(dfg, factor, dur_class, residual_class):
    """End of each node in each scenario."""
    ends = [
        longest_path.ends(dfg, scaled(dfg.dur_ns, dur_class, each), scaled(dfg.residual_ns, residual_class, each))
        for each in factor.T
    ]
    return np.stack(ends, axis=1)


@thorough(200)
@given(scenarios() | scenarios(longest=10**12))
def test_a_batch_equals_single_replays(case):
    dfg, *scaling = case
    assert (Batch(dfg).ends(np.arange(dfg.nodes), *scaling) == one_by_one(dfg, *scaling)).all()


@thorough()
@given(scenarios(), st.integers(0, CLASSES - 1))
def test_more_speed_is_never_slower_and_none_is_the_graph_as_it_is(case, faster):
    dfg, factor, *classes = case
    more = factor.copy()
    more[faster] *= 1.5
    batch, nodes = Batch(dfg), np.arange(dfg.nodes)
    assert (batch.ends(nodes, more, *classes) <= batch.ends(nodes, factor, *classes)).all()
    as_it_is = longest_path.ends(dfg, dfg.dur_ns, dfg.residual_ns)
    assert (batch.ends(nodes, np.ones_like(factor), *classes) == as_it_is[:, None]).all()


def test_more_scenarios_than_run_side_by_side_and_nodes_observed_in_any_order():
    dfg = dfg_of([0, 1, 0], [120, 60, 30], [(0, 2, 0), (1, 2, 5)])
    factor = np.linspace(0.5, 4, 150)[None]
    dur_class, residual_class = np.array([0, -1, -1]), np.full(3, -1)
    ends = Batch(dfg).ends(np.array([2, 0, 2]), factor, dur_class, residual_class)
    first = np.rint(120 / factor[0])
    assert (ends == [np.maximum(first, 65) + 30, first, np.maximum(first, 65) + 30]).all()


def test_a_class_without_factors_is_an_error():
    dfg = dfg_of([0, 1], [10, 10], [])
    with pytest.raises(ValueError, match="beyond the 1 of"):
        Batch(dfg).ends(np.array([0]), np.ones((1, 2)), np.array([0, 1]), np.array([-1, -1]))
