"""List scheduling: hand-worked lanes, and random graphs against plain Python."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given

from esprof.core.errors import InputError
from esprof.replay.engine import longest_path
from esprof.replay.engine.schedule import freeze, schedule
from tests.cases.properties import thorough
from tests.cases.random_graphs import LANES, dfg_of, graphs, list_schedule, predecessors, ready


def replayed(dfg):
    return longest_path.ends(dfg, dfg.dur_ns, dfg.residual_ns)


def test_a_lane_runs_the_ready_node_that_was_recorded_first():
    """1 and 2 become ready while 0 runs: 2 was recorded first. 3 was recorded before all, but is ready last."""
    dfg = dfg_of([0, 0, 0, 0, 1], [10, 5, 5, 5, 16], [(4, 3, 0)], recorded=[0, 3, 2, 1, 0])
    plan = schedule(dfg)
    assert plan.start_ns.tolist() == [0, 15, 10, 20, 0]


def test_ties_are_broken_by_the_lower_id():
    dfg = dfg_of([0, 0, 0], [10, 10, 10], [], recorded=[5, 5, 5])
    assert schedule(dfg).start_ns.tolist() == [5, 15, 25]


def test_nodes_without_a_lane_do_not_queue():
    dfg = dfg_of([-1, -1, 0], [10, 10, 10], [(0, 2, 0), (1, 2, 0)])
    assert schedule(dfg).start_ns.tolist() == [0, 0, 10]


def test_the_frozen_graph_is_renumbered_and_holds_each_lane_to_its_order():
    dfg = dfg_of([0, 0, 0, 1], [10, 5, 5, 1], [(2, 3, 4)], recorded=[0, 3, 2, 0])
    plan = schedule(dfg)
    frozen = freeze(dfg, plan.order)
    assert plan.order.tolist() == [0, 2, 1, 3]
    assert [frozen.label(node) for node in range(4)] == ["op 0", "op 2", "op 1", "op 3"]
    assert [predecessors(frozen, node) for node in range(4)] == [[], [(0, 0)], [(1, 0)], [(1, 4)]]
    assert frozen.marks.last.tolist() == [[3]]


def test_a_cycle_is_an_error():
    with pytest.raises(InputError, match="2 nodes form a cycle"):
        schedule(dfg_of([0, 1, 2], [1, 1, 1], [(1, 2, 0), (2, 1, 0)]))


@thorough(300)
@given(graphs(in_order=False))
def test_it_schedules_as_plain_python_does(dfg):
    plan = schedule(dfg)
    order, end = list_schedule(dfg)
    assert (plan.start_ns + dfg.dur_ns).tolist() == end
    for lane in range(LANES):
        assert [n for n in plan.order.tolist() if dfg.lane[n] == lane] == [n for n in order if dfg.lane[n] == lane]


@thorough(300)
@given(graphs(in_order=False))
def test_the_frozen_graph_takes_as_long_as_the_schedule_and_is_its_own_schedule(dfg):
    plan = schedule(dfg)
    frozen = freeze(dfg, plan.order)
    end = replayed(frozen)
    assert end.tolist() == (plan.start_ns + dfg.dur_ns)[plan.order].tolist()
    target = frozen.pred_target
    assert (frozen.pred_idx < target).all()
    assert (np.diff(frozen.pred_idx)[np.diff(target) == 0] > 0).all()
    again = schedule(frozen)
    assert (again.start_ns + frozen.dur_ns).tolist() == end.tolist()
    assert freeze(frozen, again.order).edges == frozen.edges


@thorough(200)
@given(graphs(least_lag=0, in_order=False))
def test_a_lane_runs_one_node_at_a_time_and_never_idles_while_one_is_ready(dfg):
    plan = schedule(dfg)
    end = dict(enumerate((plan.start_ns + dfg.dur_ns).tolist()))
    for lane in range(LANES):
        free = None
        for node in (n for n in plan.order.tolist() if dfg.lane[n] == lane):
            begin, when = int(plan.start_ns[node] - dfg.residual_ns[node]), ready(dfg, node, end)
            assert begin >= when
            assert begin in (when, free)
            assert free is None or begin >= free
            free = end[node]


_SCHEDULE = """
import numpy as np
from esprof.replay.engine.schedule import freeze, schedule
from tests.cases.random_graphs import dfg_of
rng = np.random.default_rng(1)
nodes, edges = 400, {(int(rng.integers(0, n)), n) for n in range(1, 400) for _ in range(2)}
dfg = dfg_of(rng.integers(-1, 3, nodes), rng.integers(0, 9, nodes), [(*edge, 1) for edge in edges])
plan = schedule(dfg)
frozen = freeze(dfg, plan.order)
print(plan.order.tolist(), plan.start_ns.tolist(), frozen.pred_idx.tolist())
"""


@pytest.mark.slow
def test_the_hash_seed_does_not_matter():
    seen = {
        subprocess.run(
            [sys.executable, "-c", _SCHEDULE],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(seen) == 1
