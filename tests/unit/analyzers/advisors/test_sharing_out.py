"""Devices dealt out among jobs, given back, and paid for: worked examples, and small instances against all choices."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.greedy import ElasticJob, deal, proposals
from esprof.analyzers.advisors.growth import growth
from esprof.analyzers.advisors.levels import by_team, fill
from esprof.analyzers.advisors.makespan import Device
from esprof.analyzers.advisors.mix import Job, Mix
from esprof.analyzers.advisors.pricing import Price, Recovery, break_even, cheapest, frontier, longer, options
from esprof.analyzers.advisors.reclaim import Server, Stop, reclaim

V100, P100 = Device("V100", "V100", 1 / 3, 1 / 3), Device("P100", "P100", 1 / 1.9, 1 / 1.9)
KINDS = {"V100": V100, "P100": P100}


def test_two_more_devices_may_be_worth_more_than_twice_one():
    job = ElasticJob("j", 12, KINDS)
    (best,) = proposals(job, {"V100": 2}, {"P100": 2})
    assert (best.kind, best.devices) == ("P100", 2)
    assert best.speedup_each == pytest.approx(1.25)  # One brings 1.20 (EasyScale, SC 2023).
    found = growth([V100, V100], KINDS, {"V100": 2, "P100": 2}, 12)
    assert [(one.kind, one.devices) for one in found.proposals] == [("P100", 2), ("P100", 1)]
    assert [one.gain_each_pct for one in found.proposals] == pytest.approx([25.0, 20.0], abs=0.1)
    assert found.ests == {"V100": (4, 4), "P100": (2, 2)}
    assert 13 not in {one.n_est for one in found.good_counts}  # Leaves more idle than 12.


def test_jobs_that_do_not_run_come_first_and_the_rest_goes_where_it_brings_most():
    small, large = ElasticJob("small", 2, KINDS), ElasticJob("large", 12, KINDS)
    held = deal([small, large], {"large": {"V100": 2}}, {"P100": 2, "V100": 1})
    assert sum(held["small"].values()) >= 1
    total = {kind: sum(mine.get(kind, 0) for mine in held.values()) for kind in KINDS}
    assert total == {"V100": 3, "P100": 2}


servers = st.lists(
    st.builds(
        Server,
        name=st.uuids().map(str),
        fixed=st.sets(st.sampled_from("abc"), max_size=2).map(tuple),
        flexible_cost=st.integers(0, 5).map(float),
    ),
    min_size=1,
    max_size=6,
)


@given(servers, st.data())
def test_no_choice_of_servers_costs_less(some, data):
    jobs = {name: Stop(data.draw(st.integers(0, 9)), 1.0, 2.0, data.draw(st.integers(1, 4))) for name in "abc"}
    count = data.draw(st.integers(0, len(some)))

    def cost(chosen):
        stopped = {job for server in chosen for job in server.fixed}
        return sum(server.flexible_cost for server in chosen) + sum(jobs[job].cost for job in stopped)

    found = reclaim(some, jobs, count)
    assert found.cost == pytest.approx(min(cost(chosen) for chosen in itertools.combinations(some, count)))
    assert found.cost == pytest.approx(found.bound)
    given_back = [server for server in some if server.name in found.servers]
    assert len(given_back) >= count
    assert cost(given_back) == pytest.approx(found.cost)


def test_more_servers_than_there_are_cannot_be_given_back():
    with pytest.raises(ValueError, match="there are 1"):
        reclaim([Server("s")], {}, 2)


def job(name, entity, rates):
    return Job(id=name, entity=entity, throughput_steps_per_s=rates)


def test_teams_share_first_then_their_jobs():
    # One device: a team of one job and a team of three get half each; a weight of 3 turns that into a quarter and the rest.
    jobs = (job("a", "one", {"A": 1.0}), *(job(name, "many", {"A": 1.0}) for name in "xyz"))
    _, levels = fill(Mix(cluster={"A": 1}, jobs=jobs))
    assert levels.normal == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6], rel=1e-5)
    weighed = Mix(cluster={"A": 1}, jobs=jobs, entities={"many": 3.0})
    assert by_team(weighed, fill(weighed)[1].normal) == pytest.approx({"one": 1 / 4, "many": 3 / 4}, rel=1e-5)


def test_what_a_job_cannot_use_goes_to_the_others():
    # `a` runs on A alone, and A has one device: it stops at 1 A. The others share B on.
    jobs = (job("a", "one", {"A": 1.0}), job("x", "many", {"B": 1.0}), job("y", "many", {"B": 1.0}))
    _, levels = fill(Mix(cluster={"A": 1, "B": 3}, jobs=jobs))
    assert levels.stages == 2
    made = [level * need for level, need in zip(levels.normal, [1 / 4, 3 / 4, 3 / 4], strict=True)]
    assert made == pytest.approx([1, 1, 1], rel=1e-5)  # Each runs all the time: no job runs on two devices at once.


def test_the_frontier_and_what_would_turn_the_choice():
    steps = 3_600.0 * 10
    one = Job(id="j", steps=steps, throughput_steps_per_s={"fast": 2.0, "slow": 1.0, "bad": 0.9})
    prices = {"fast": Price(per_hour=3.0), "slow": Price(per_hour=1.0), "bad": Price(per_hour=1.2)}
    found = tuple(options(one, prices, Recovery()))
    assert [(option.kind, option.hours, option.money) for option in frontier(found)] == [
        ("fast", 5.0, 15.0),
        ("slow", 10.0, 10.0),
    ]
    best = cheapest(found)
    assert best.kind == "slow"
    assert cheapest(found, deadline_h=6).kind == "fast"
    assert cheapest(found, deadline_h=1) is None
    assert break_even(best, frontier(found)[0], prices["fast"]) == pytest.approx(2.0)


def test_interruptions_cost_what_is_done_again():
    recovery = Recovery(restore_s=360, checkpoint_every_s=720, checkpoint_share=0.01)
    assert longer(Price(per_hour=1.0), recovery) == pytest.approx(1.01)
    assert longer(Price(per_hour=1.0, interruptions_per_hour=0.5), recovery) == pytest.approx(1.01 + 0.5 * 0.2)
