"""Closed forms of checkpoint intervals against published examples and plain searches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.save_cost import FLAT, Failures, SaveCost
from tests.cases.properties import thorough

S = 1e9


def test_a_save_of_one_step_within_5_percent_needs_20_steps() -> None:
    assert SaveCost(step_ns=S, stops_ns=S).shortest_within(0.05) == 20


def test_the_best_interval_of_young_and_daly() -> None:
    # Interruptions every 6000 s, repairs of 600 s, saves of 10 s, steps of 15 s: 24.2 steps.
    cost = SaveCost(step_ns=15 * S, stops_ns=10 * S)
    assert cost.best(Failures(mtbf_ns=6000 * S, restart_ns=600 * S)) == 24


def test_a_save_in_the_background_waits_for_the_one_before_it() -> None:
    cost = SaveCost(step_ns=1 * S, stops_ns=0.5 * S, writes_ns=3 * S)
    assert [cost.lost_ns(every) / S for every in (1, 2, 3, 4, 5)] == [3.5, 2.5, 1.5, 0.5, 0.5]
    assert cost.shortest == 4


def test_a_save_in_the_background_slows_the_steps_beside_it() -> None:
    cost = SaveCost(step_ns=1 * S, stops_ns=0, writes_ns=3 * S, slows_ns=0.1 * S)
    assert cost.lost_ns(10) == pytest.approx(0.3 * S)
    assert cost.overhead(10) == pytest.approx(0.03)


def test_the_most_that_a_failure_loses() -> None:
    assert SaveCost(step_ns=2 * S, stops_ns=S, writes_ns=3 * S).worst_loss_ns(10) == 23 * S


def test_saves_without_cost_may_follow_each_other() -> None:
    cost = SaveCost(step_ns=S, stops_ns=0.0)
    assert (cost.shortest_within(0.035), cost.best(Failures(mtbf_ns=3600 * S))) == (1, 1)


costs = st.builds(
    SaveCost,
    step_ns=st.floats(0.5, 2),
    stops_ns=st.floats(0.01, 20),
    writes_ns=st.floats(0, 20),
    slows_ns=st.floats(0, 0.5),
)
failures = st.builds(Failures, mtbf_ns=st.floats(50, 2000), restart_ns=st.floats(0, 100))
LONGEST = 4000


@thorough()
@given(costs, st.floats(0.01, 0.5))
def test_no_shorter_interval_is_within_the_bound(cost: SaveCost, share: float) -> None:
    every = cost.shortest_within(share)
    assert cost.overhead(every) <= share * (1 + 1e-9)
    assert every == cost.shortest or cost.overhead(every - 1) > share * (1 - 1e-9)


@thorough()
@given(costs, failures)
def test_the_best_is_that_of_a_search(cost: SaveCost, of: Failures) -> None:
    least = min(cost.waste(k, of) for k in range(cost.shortest, cost.shortest + LONGEST))
    assert cost.waste(cost.best(of), of) == pytest.approx(least)


@thorough()
@given(costs, failures)
def test_the_flat_range_ends_where_more_is_lost(cost: SaveCost, of: Failures) -> None:
    least = cost.waste(cost.best(of), of)
    most = least + FLAT * (1 + least)
    low, high = cost.flat_range(of)
    assert max(cost.waste(low, of), cost.waste(high, of)) <= most + 1e-9
    assert low == cost.shortest or cost.waste(low - 1, of) >= most - 1e-9
    assert cost.waste(high + 1, of) >= most - 1e-9
