"""Devices assigned to jobs, returned, and paid for: worked examples, and small instances compared with all choices."""

from dataclasses import replace

import pytest

from esprof.analyzers.advisors.cluster.answer import advise, check
from esprof.analyzers.advisors.cluster.greedy import ElasticJob, deal, proposals
from esprof.analyzers.advisors.cluster.levels import fill
from esprof.analyzers.advisors.cluster.mix import Mix, SharingJob, Together
from esprof.analyzers.advisors.cluster.money import Recovery, interrupted, longer
from esprof.analyzers.advisors.job.growth import Inventory, Model, growth
from esprof.analyzers.advisors.job.makespan import Device
from esprof.core.errors import UsageError

V100, P100 = Device("V100", "V100", 1 / 3, 1 / 3), Device("P100", "P100", 1 / 1.9, 1 / 1.9)
KINDS = {"V100": V100, "P100": P100}


def test_two_devices_may_be_worth_more_than_twice_one():
    job = ElasticJob("j", 12, KINDS)
    (best,) = proposals(job, {"V100": 2}, {"P100": 2})
    assert (best.kind, best.devices) == ("P100", 2)
    assert best.speedup_each == pytest.approx(1.25)  # One brings 1.20 (EasyScale, SC 2023).
    found = growth([V100, V100], KINDS, Inventory(devices={"V100": 2, "P100": 2}), 12)
    assert [(one.kind, one.devices) for one in found.proposals] == [("P100", 2), ("P100", 1)]
    assert [one.gain_each_pct for one in found.proposals] == pytest.approx([25.0, 20.0], abs=0.1)
    assert found.ests == {"V100": (4, 4), "P100": (2, 2)}
    assert 13 not in {one.n_est for one in found.good_counts}  # Leaves more idle than 12.


def test_limits_of_the_inventory_hold():
    few = growth([V100, V100], KINDS, Inventory(devices={"V100": 4, "P100": 4}, max_devices=3), 12)
    assert few.devices == {"V100": 3}
    alone = growth([P100], KINDS, Inventory(devices={"V100": 1, "P100": 2}, single_type=True), 12)
    assert alone.devices == {"P100": 2}  # 12 ESTs: 6 / 1.9 s, against 12 / 3.
    assert {one.kind for one in alone.proposals} == {"P100"}
    assert not Inventory(devices={"A": Model(count=1, memory_gb=1)}).has_room("A", 2_000_000_000)
    assert Inventory(devices={"A": Model(count=1, memory_gb=1), "B": 1}).has_room("B", 2_000_000_000)
    no_room = {"V100": replace(V100, most=0)}
    with pytest.raises(UsageError, match="no device of the inventory has room"):
        growth([P100], no_room, Inventory(devices={"V100": 2}), 12)


def test_waiting_jobs_come_first_then_the_largest_speedups():
    small, large = ElasticJob("small", 2, KINDS), ElasticJob("large", 12, KINDS)
    held = deal([small, large], {"large": {"V100": 2}}, {"P100": 2, "V100": 1})
    assert sum(held["small"].values()) >= 1
    total = {kind: sum(mine.get(kind, 0) for mine in held.values()) for kind in KINDS}
    assert total == {"V100": 3, "P100": 2}


def job(name, entity, rates):
    return SharingJob(id=name, entity=entity, throughput_steps_per_s=rates)


def test_teams_share_before_their_jobs():
    # One device: a team of one job and a team of three get half each; with a weight of 3, a quarter and three quarters.
    jobs = (job("a", "one", {"A": 1.0}), *(job(name, "many", {"A": 1.0}) for name in "xyz"))
    _, levels = fill(Mix(cluster={"A": 1}, jobs=jobs))
    assert levels.normal == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6], rel=1e-5)
    weighed = Mix(cluster={"A": 1}, jobs=jobs, entities={"many": 3.0})
    assert fill(weighed)[1].normal == pytest.approx([1 / 4] * 4, rel=1e-5)


def test_unusable_devices_are_given_to_other_jobs():
    # `a` runs only on A, which has one device: its level stops at 1. The others divide B.
    jobs = (job("a", "one", {"A": 1.0}), job("x", "many", {"B": 1.0}), job("y", "many", {"B": 1.0}))
    _, levels = fill(Mix(cluster={"A": 1, "B": 3}, jobs=jobs))
    assert levels.stages == 2
    made = [level * need for level, need in zip(levels.normal, [1 / 4, 3 / 4, 3 / 4], strict=True)]
    assert made == pytest.approx([1, 1, 1], rel=1e-5)  # Each runs all the time: no job runs on two devices at once.


def test_earlier_deadlines_cost_more_and_prices_change_the_choice():
    # Ten hours of work on `slow` for 10, five on `fast` for 15; two devices at once are of no use to one job.
    one = SharingJob(id="j", steps=36_000.0, throughput_steps_per_s={"fast": 2.0, "slow": 1.0, "bad": 0.9})
    mix = Mix(cluster={"fast": 1, "slow": 1, "bad": 1}, jobs=(one,))
    prices = {"fast": 3.0, "slow": 1.0, "bad": 1.2}
    advice = advise(mix, "cost", prices)
    assert advice.value == pytest.approx(10)
    assert advice.frontier[0].money == pytest.approx(15)
    assert advice.frontier[0].hours == pytest.approx(5)
    assert advice.frontier[-1].money == pytest.approx(10)
    assert [one.money for one in advice.frontier] == sorted((one.money for one in advice.frontier), reverse=True)
    assert advice.break_even == pytest.approx({"fast": 2.0, "bad": 0.9})
    for kind, turns in advice.break_even.items():
        for factor, is_used in ((0.99, True), (1.01, False)):
            again = advise(mix, "cost", prices | {kind: turns * factor})
            assert (kind in {given.device for given in again.decision}) == is_used


def test_interruptions_cost_repeated_work():
    recovery = Recovery(restore_s=360, checkpoint_every_s=720, checkpoint_share=0.01)
    assert longer(0.0, recovery) == pytest.approx(1.01)
    assert longer(0.5, recovery) == pytest.approx(1.01 + 0.5 * 0.2)
    pair = Together(with_="w", throughput_steps_per_s={"spot": (0.5, 2.0)})
    one = SharingJob(id="j", workload="w", throughput_steps_per_s={"spot": 1.0, "own": 1.0}, together=(pair,))
    left = interrupted(Mix(cluster={"spot": 1, "own": 1}, jobs=(one,)), {"spot": 0.5}, recovery).jobs[0]
    assert left.throughput_steps_per_s == pytest.approx({"spot": 1 / 1.11, "own": 1 / 1.01})
    assert left.together[0].throughput_steps_per_s["spot"] == pytest.approx((0.5 / 1.11, 2 / 1.11))


def test_advice_by_teams_proves_the_minimum():
    jobs = (job("a", "one", {"A": 1.0}), job("x", "many", {"B": 1.0}), job("y", "many", {"B": 1.0}))
    advice = advise(Mix(cluster={"A": 1, "B": 3}, jobs=jobs), "fairness")
    assert check(advice).gap < 1e-7
    assert advice.throughput_steps_per_s == pytest.approx({"a": 1, "x": 1, "y": 1}, rel=1e-5)
