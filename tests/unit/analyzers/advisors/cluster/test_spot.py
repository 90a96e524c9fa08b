"""Offers over time: small instances compared with all choices in all cases, catalogs read, and wrong answers refused."""

import json
import math
from collections import defaultdict
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.cluster.program import Infeasible
from esprof.analyzers.advisors.cluster.questions.ask import ask, verify
from esprof.analyzers.advisors.cluster.questions.spot import Offer, SpotProblem, check_spot, choose_offers
from esprof.core.errors import InputError, MismatchError
from esprof.reports.terminal.advice.cluster import draw_cluster
from tests.cases.properties import thorough

replace = msgspec.structs.replace


@st.composite
def problems(draw, ticks=4, rates=(0.0, 0.1, 1.0)):
    ticks = draw(st.integers(1, ticks))
    price = st.none() | st.sampled_from([0.5, 1.0, 2.0, 3.0])
    offers = tuple(
        Offer(
            name=name,
            steps_per_s=draw(st.sampled_from([1.0, 2.0, 3.0])),
            prices_per_h=tuple(draw(st.lists(price, min_size=ticks, max_size=ticks))),
            interruptions_per_hour=draw(st.sampled_from(rates)),
            available_share=draw(st.sampled_from([1.0, 0.5] if max(rates) else [1.0])),
        )
        for name in "abc"[: draw(st.integers(1, 3))]
    )
    return SpotProblem(
        steps=1_800.0 * draw(st.integers(1, 4 * ticks)),
        deadline_h=float(ticks),
        tick_h=1.0,
        restore_s=draw(st.sampled_from([0.0, 300.0, 1_800.0])),
        unit_steps=300.0,
        offers=offers,
    )


def tried(problem, offer, tick, left, held):
    """Units left after an uninterrupted hour, its cost, and the chance of an interruption; from the definition."""
    restore_s = problem.restore_s if offer.name != held else 0.0
    done = max(0, math.floor(offer.steps_per_s * (3_600 - restore_s) / problem.unit_steps + 1e-9))
    used = (restore_s + left * problem.unit_steps / offer.steps_per_s) / 3_600 if left <= done else 1.0
    lost = 1 - math.exp(-offer.interruptions_per_hour * used)
    return max(0, left - done), offer.prices_per_h[tick] * used, lost


def least_cost(problem, tick, left, held=None):
    """The least expected cost, by trying every choice in every case."""
    if not left:
        return 0.0
    if tick == problem.ticks:
        return math.inf
    costs = [least_cost(problem, tick + 1, left)]
    for offer in problem.offers:
        if offer.prices_per_h[tick] is not None:
            after, paid, lost = tried(problem, offer, tick, left, held)
            cost = (1 - lost) * (paid + least_cost(problem, tick + 1, after, offer.name))
            cost += lost * (paid / 2 + least_cost(problem, tick + 1, left)) if lost else 0.0
            away = 0.0 if offer.name == held else 1 - offer.available_share
            costs.append((1 - away) * cost + (away * least_cost(problem, tick + 1, left) if away else 0.0))
    return min(costs)


@thorough(200)
@given(problems())
def test_no_choices_cost_less(problem):
    least = least_cost(problem, 0, problem.units)
    if math.isinf(least):
        with pytest.raises(Infeasible, match="no choice of offers meets the deadline in every case"):
            choose_offers(problem)
        return
    found = choose_offers(problem)
    assert found.value == pytest.approx(least)
    assert check_spot(found).gap < 1e-9
    only = [value for name, value in found.baselines.items() if name.startswith("only")]
    assert all(found.value <= value * (1 + 1e-9) for value in only)
    assert found.baselines["if every offer were there and none interrupted"] <= found.value * (1 + 1e-9)


@thorough(100)
@given(problems(ticks=5, rates=(0.0,)))
def test_without_interruptions_it_is_the_cheapest_sequence(problem):
    costs = []
    for sequence in product([None, *problem.offers], repeat=problem.ticks):
        left, held, cost = problem.units, None, 0.0
        for tick, offer in enumerate(sequence):
            if offer is not None and left:
                if offer.prices_per_h[tick] is None:
                    cost = math.inf
                    break
                left, paid, _ = tried(problem, offer, tick, left, held)
                cost += paid
            held = offer.name if offer else None
        costs.append(math.inf if left else cost)
    try:
        assert choose_offers(problem).value == pytest.approx(min(costs))
    except Infeasible:
        assert math.isinf(min(costs))


def day(spot=0.3, own=1.0, hours=24, **changes):
    """Ten hours of work, on a spot offer that is cheap but may be lost, and on one that is safe."""
    offers = (
        Offer(name="spot", steps_per_s=1.0, prices_per_h=(spot,) * hours, interruptions_per_hour=0.2),
        Offer(name="own", steps_per_s=1.0, prices_per_h=(own,) * hours),
    )
    fields = {"steps": 36_000.0, "deadline_h": float(hours), "tick_h": 1.0, "restore_s": 300.0, "unit_steps": 300.0}
    return SpotProblem(**(fields | {"offers": offers} | changes))


def test_spot_first_and_the_safe_offer_before_it_is_too_late():
    found = choose_offers(day())
    assert found.decision.uninterrupted[0].offer == "spot"
    assert 10 * 0.3 < found.value < found.baselines["only own"]
    late = {(one.tick, one.held): one.take for one in found.decision.choices if one.units_from <= 60}
    assert late[18, None] == "own"  # Five hours of work and six hours left: an interruption would cost the deadline.
    assert choose_offers(day(spot=0.9)).decision.uninterrupted[0].offer == "own"
    text = draw_cluster(found)
    assert "expected cost" in text
    assert "spot" in text


def test_the_choices_cost_what_they_promise():
    found = choose_offers(day(offers=(replace(day().offers[0], available_share=0.7), day().offers[1])))
    # In the order of the work left: the last that applies is the choice.
    chosen = defaultdict(list)
    for one in found.decision.choices:
        chosen[one.tick, one.held].append(one)
    random = np.random.default_rng(1)
    costs = []
    for _ in range(400):
        left, held, cost = found.problem.units, None, 0.0
        for tick in range(found.problem.ticks):
            take = [one.take for one in chosen[tick, held] if one.units_from <= left][-1] if left else None
            if take is None:
                held = None
                continue
            offer = next(one for one in found.problem.offers if one.name == take)
            after, paid, lost = tried(found.problem, offer, tick, left, held)
            if take != held and random.random() >= offer.available_share:
                held = None
            elif random.random() < lost:
                held, cost = None, cost + paid / 2
            else:
                left, held, cost = after, take, cost + paid
        assert not left
        costs.append(cost)
    assert np.mean(costs) == pytest.approx(found.value, abs=4 * np.std(costs) / np.sqrt(len(costs)))


def test_the_cheap_hours_are_waited_for():
    prices = (3.0,) * 6 + (1.0,) * 12
    offer = Offer(name="own", steps_per_s=1.0, prices_per_h=prices)
    found = choose_offers(day(offers=(offer,), deadline_h=18.0, restore_s=0.0))
    assert [(one.from_h, one.until_h, one.offer) for one in found.decision.uninterrupted] == [
        (0.0, 6.0, None),
        (6.0, 16.0, "own"),
    ]
    assert found.value == pytest.approx(10)


def test_an_offer_that_makes_no_progress_is_named():
    found = choose_offers(day(unit_steps=3_500.0))
    assert found.warnings[0].startswith("spot does less than a unit of work")


def test_wrong_answers_are_refused():
    found = choose_offers(day())

    def decided(choices, **changes):
        return replace(found, decision=replace(found.decision, choices=tuple(choices)), **changes)

    choices = found.decision.choices
    for wrong, says in (
        (replace(found, value=1.0, bound=1.0), "states the value 1"),
        (decided(choices[1:]), "in every case"),
        (decided(replace(one, take=None) for one in choices), "do not meet the deadline"),
        (decided(replace(one, take="own") for one in choices), "said to happen without"),
        (decided(replace(one, take="x") for one in choices), "not one of the problem"),
        (replace(found, problem=replace(found.problem, tick_h=0.0)), "must be above 0"),
    ):
        with pytest.raises(MismatchError, match=says):
            verify(msgspec.json.encode(wrong), "spot")
    dear = choose_offers(day(offers=found.problem.offers[1:]))
    every = [replace(one, held=held) for one in dear.decision.choices for held in {one.held, "spot"}]
    with pytest.raises(MismatchError, match="states the bound"):
        check_spot(replace(dear, problem=found.problem, decision=replace(dear.decision, choices=tuple(every))))


CATALOG = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,\
AvailabilityZone,Arch
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,0.95,us-east-1,use1-az4,x86_64
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,,us-east-1,use1-az6,x86_64
"""

JOB = """
steps: 36000
deadline_h: 24
restore_s: 300
offers:
  - {name: spot, instance: p3.2xlarge, zone: use1-az4, spot: true, interruptions_per_hour: 0.1, steps_per_s: 1}
  - {name: own, instance: p3.2xlarge, steps_per_s: 1}
catalogs: [{file: a.csv}, {file: b.csv, from_h: 12}]
"""


def asked(folder, job=JOB, catalog=CATALOG):
    for name, text in {"job.yaml": job, "a.csv": catalog, "b.csv": catalog.replace("0.95", "0.5")}.items():
        (folder / name).write_text(text)
    return ask("spot", folder / "job.yaml", None)


def test_prices_come_from_catalogs(tmp_path):
    found = asked(tmp_path)
    spot, own = found.problem.offers
    assert spot.prices_per_h == (0.95,) * 12 + (0.5,) * 12
    assert own.prices_per_h == (3.06,) * 24
    assert found.problem.unit_steps == 300
    assert verify(msgspec.json.encode(found), "spot").gap < 1e-9


def test_interruptions_come_from_a_trace(tmp_path):
    # Two instances are there in five of seven ticks that another follows, and are lost twice.
    trace = {"metadata": {"gap_seconds": 1_800}, "data": [2, 4, 1, 0, 2, 2, 2, 1]}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    with_trace = JOB.replace("interruptions_per_hour: 0.1", "trace: trace.json, instances: 2")
    found = asked(tmp_path, with_trace)
    assert found.problem.offers[0].interruptions_per_hour == pytest.approx(2 / 2.5)
    assert found.problem.offers[0].available_share == 5 / 8
    with pytest.raises(InputError, match="never has 5 instances"):
        asked(tmp_path, with_trace.replace("instances: 2", "instances: 5"))
    with pytest.raises(InputError, match="needs either"):
        asked(tmp_path, with_trace.replace("instances: 2", "interruptions_per_hour: 1"))


@pytest.mark.parametrize(
    ("old", "new", "file", "says"),
    [
        ("p3.2xlarge, zone: use1-az4", "p9, zone: use1-az4", "a.csv", "has no p9 in use1-az4"),
        ("zone: use1-az4, ", "", "a.csv", "has 2 prices of p3.2xlarge"),
        ("interruptions_per_hour: 0.1, ", "", "job.yaml", "spot needs either interruptions_per_hour or a trace"),
        ("SpotPrice", "Spot", "a.csv", "has no column SpotPrice"),
        (",0.95,", ",cheap,", "a.csv", "has the price cheap"),
        ("{file: a.csv}", "{file: c.csv}", "c.csv", "cannot be read"),
        ("from_h: 12", "from_h: 0", "job.yaml", "in the order of their from_h"),
        ("deadline_h: 24", "deadline_h: 0", "job.yaml", "deadline must be from 1 to"),
        ("steps: 36000", "steps: -1", "job.yaml", "must be above 0"),
        ("steps: 36000", "steps: 1.0e+12", "job.yaml", "states"),
        ("name: own", "name: spot", "job.yaml", "no name twice"),
        ("spot: true", "available_share: 1.5, spot: true", "job.yaml", "available_share must be above 0"),
        ("restore_s", "restores", "job.yaml", "restores"),
    ],
)
def test_invalid_files_are_refused(tmp_path, old, new, file, says):
    with pytest.raises(InputError, match=says) as refused:
        asked(tmp_path, JOB.replace(old, new), CATALOG.replace(old, new))
    assert str(tmp_path / file) in str(refused.value)
    assert refused.value.remedy
