"""Answers in whole devices and servers: small instances compared with all choices, and wrong answers refused."""

import itertools
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.cluster.questions.answer import verified
from esprof.analyzers.advisors.cluster.questions.ask import QUESTIONS, ask, verify
from esprof.analyzers.advisors.cluster.questions.giving_back import (
    OccupiedServer,
    ReclaimProblem,
    StoppableJob,
    check_reclaim,
    give_back,
)
from esprof.analyzers.advisors.cluster.questions.sizes import SizedJob, SizesProblem, admitted, check_sizes, sizes
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.core.errors import InputError, MismatchError, UsageError
from esprof.reports.terminal.advice.cluster import draw_cluster
from tests.cases.properties import thorough

replace = msgspec.structs.replace

rates = st.integers(1, 50).map(float)
sized = st.builds(
    SizedJob,
    id=st.uuids().map(str),
    steps=st.integers(1, 1_000).map(float),
    sizes=st.dictionaries(st.integers(1, 5), rates, min_size=1, max_size=4),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
)


@thorough(200)
@given(st.lists(sized, min_size=1, max_size=4), st.integers(1, 12))
def test_no_sizes_of_the_shortest_jobs_save_more_time(jobs, devices):
    problem = SizesProblem(jobs=tuple(jobs), cluster={"A": devices})
    found = sizes(problem)
    run = admitted(problem)
    best = min(
        sum(job.weight * job.seconds(n) for job, n in zip(run, picked, strict=True))
        for picked in itertools.product(*(job.sizes for job in run))
        if sum(picked) <= devices
    )
    assert found.value == pytest.approx(best)
    assert all(found.value <= other * (1 + 1e-9) for other in found.baselines.values())
    assert check_sizes(found).gap < 1e-6


def test_the_shortest_jobs_run_first():
    jobs = tuple(SizedJob(id=name, steps=steps, sizes={2: 1.0}) for name, steps in (("long", 9.0), ("short", 1.0)))
    found = sizes(SizesProblem(jobs=jobs, cluster={"A": 3}))
    assert [(one.job, one.devices) for one in found.decision] == [("long", 0), ("short", 2)]
    assert found.warnings == ("no devices are left for long: shorter jobs run first",)


def test_a_larger_size_may_be_slower_and_a_much_larger_one_faster():
    # Published throughputs of a language model on 1, 2, 4 and 8 V100s (Gavel).
    job = SizedJob(id="lm", steps=1_000, sizes={1: 81.7, 2: 163.1, 4: 121.5, 8: 615.1})
    assert [sizes(SizesProblem(jobs=(job,), cluster={"V100": n})).decision[0].devices for n in (1, 3, 7, 8)] == [
        1,
        2,
        2,
        8,
    ]


stoppable = st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9))
occupied = st.tuples(st.sets(st.sampled_from("abc"), max_size=2), st.integers(0, 3))


@thorough(200)
@given(st.tuples(stoppable, stoppable, stoppable), st.lists(occupied, min_size=1, max_size=6), st.data())
def test_no_servers_cost_less(jobs, servers, data):
    problem = ReclaimProblem(
        give_back=data.draw(st.integers(1, len(servers))),
        servers=tuple(
            OccupiedServer(name=f"s{at}", jobs=tuple(sorted(held)), flexible_devices=count)
            for at, (held, count) in enumerate(servers)
        ),
        jobs=tuple(
            StoppableJob(id=name, devices=n, restore_s=restore, since_checkpoint_s=since, checkpoint_s=save, step_s=1.0)
            for name, (n, restore, since, save) in zip("abc", jobs, strict=True)
        ),
        away_s=2.0,
    )

    def cost(chosen):
        stopped = {job for server in chosen for job in server.jobs}
        lost = 0.0
        for job in problem.jobs:
            if job.name in stopped:
                saved = job.since_checkpoint_s if job.checkpoint_s is None else job.checkpoint_s + job.step_s
                lost += job.devices * (job.restore_s + min(saved, job.since_checkpoint_s))
        return lost + sum(server.flexible_devices for server in chosen) * problem.away_s

    found = give_back(problem)
    chosen = itertools.combinations(problem.servers, problem.give_back)
    assert found.value == pytest.approx(min(map(cost, chosen)))
    assert check_reclaim(found).gap < 1e-6


def spread_job() -> ReclaimProblem:
    """Job `a` on two servers, and `b`, half as large, on one."""
    return ReclaimProblem(
        give_back=1,
        servers=tuple(OccupiedServer(name=name, jobs=(job,)) for name, job in (("s1", "a"), ("s2", "a"), ("s3", "b"))),
        jobs=tuple(
            StoppableJob(id=name, devices=n, restore_s=60, since_checkpoint_s=900, checkpoint_s=30, step_s=0.8)
            for name, n in (("a", 16), ("b", 8))
        ),
    )


def test_counting_jobs_stops_the_large_job():
    # By Lyra's count a server of `a` costs 1/2 and that of `b` 1: two servers of work are lost instead of one.
    found = give_back(spread_job())
    assert found.decision.servers == ("s3",)
    assert found.decision.saving == ("b",)
    assert found.value == pytest.approx(8 * (60 + 30 + 0.8))
    assert found.baselines == pytest.approx({"Lyra's count of jobs (s1)": 16 * (60 + 30 + 0.8)})


def test_wrong_answers_are_refused():
    found = give_back(spread_job())
    other = replace(found.decision, servers=("s1",), stopped=("a",), saving=("a",))
    for wrong, says in (
        (replace(found, value=1.0, bound=1.0), "states the value 1"),
        (replace(found, decision=other), "states the value"),
        (replace(found, decision=other, value=2 * found.value, bound=2 * found.value), "states the bound"),
        (replace(found, decision=replace(found.decision, servers=())), "0 of the servers are given back"),
        (replace(found, decision=replace(found.decision, stopped=())), "other jobs stop or save"),
        (replace(found, problem=replace(found.problem, give_back=9)), "give_back must be"),
    ):
        with pytest.raises(MismatchError, match=says):
            verify(msgspec.json.encode(wrong), "reclaim")
    few = sizes(SizesProblem(jobs=(SizedJob(id="a", steps=1.0, sizes={1: 1.0, 2: 2.0}),), cluster={"A": 1}))
    (one,) = few.decision
    for devices, says in ((3, "was not measured on 3"), (2, "need 2 devices of 1"), (0, "other jobs than")):
        with pytest.raises(MismatchError, match=says):
            check_sizes(replace(few, decision=(replace(one, devices=devices),)))
    with pytest.raises(MismatchError, match="the decision is impossible"):
        verified(few, few.value, few.value * 2, "")


def test_many_linked_jobs_are_verified_by_another_program():
    names = [f"j{at}" for at in range(18)]
    servers = tuple(OccupiedServer(name=f"s{at}", jobs=tuple(names[at : at + 2])) for at in range(17))
    jobs = tuple(StoppableJob(id=name, devices=1, restore_s=1, since_checkpoint_s=1) for name in names)
    found = give_back(ReclaimProblem(give_back=1, servers=servers, jobs=jobs))
    assert found.value == pytest.approx(4)
    assert check_reclaim(found).how == "by another integer program"
    assert check_reclaim(found).bound == pytest.approx(4)


def test_too_many_servers_are_refused():
    servers = tuple(OccupiedServer(name=str(at)) for at in range(1_001))
    assert "at most 1,000" in ReclaimProblem(give_back=1, servers=servers, jobs=()).fault()


SIZES = "jobs: [{id: a, steps: 10, sizes: {1: 1.0, 2: 1.5}}]\n"
BACK = "servers: [{name: s, jobs: [a]}]\njobs: [{id: a, devices: 1, restore_s: 1, since_checkpoint_s: 1}]\n"


@pytest.mark.parametrize(
    ("question", "text", "says"),
    [
        ("sizes", SIZES, "names no devices"),
        ("sizes", SIZES + "cluster: {A: 1, B: 1}", "one type of device, but the cluster has 2"),
        ("sizes", SIZES + "cluster: {A: 0}", "at least one device"),
        ("sizes", SIZES.replace("1.5", ".inf") + "cluster: {A: 1}", "throughputs above 0"),
        ("sizes", SIZES.replace("steps", "step") + "cluster: {A: 1}", "step"),
        ("sizes", SIZES.replace("2: 1.5", "1000000000: 2") + "cluster: {A: 1000000000}", "too many"),
        ("sizes", "jobs: []\ncluster: {A: 1}", "at least one job"),
        ("reclaim", BACK + "give_back: 2", "from 1 to the 1 servers"),
        ("reclaim", BACK.replace("[a]", "[b]") + "give_back: 1", "job b of a server is not listed"),
        ("reclaim", BACK.replace("devices: 1", "devices: -1") + "give_back: 1", "negative or not finite"),
        ("reclaim", BACK, "give_back"),
    ],
)
def test_invalid_problems_are_refused(tmp_path, question, text, says):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    with pytest.raises((InputError, UsageError), match=says) as refused:
        ask(question, path, None)
    assert str(path) in str(refused.value)
    assert refused.value.remedy


def test_the_examples_of_the_page_are_answered_and_verified(tmp_path):
    page = (Path(__file__).parents[5] / "docs/how-to/clusters.md").read_text()
    examples = dict(re.findall(r"`--objective (\w+)` .*?```yaml\n(.*?)```", page, re.DOTALL))
    assert set(examples) == set(QUESTIONS)
    for name in ("monday", "tuesday"):
        prices = "InstanceType,Price,SpotPrice,Region,AvailabilityZone\np3.2xlarge,3.06,0.95,us-east-1,use1-az4\n"
        (tmp_path / f"{name}.csv").write_text(prices)
    for question, text in examples.items():
        path = tmp_path / "jobs.yaml"
        path.write_text(text)
        found = ask(question, path, None)
        assert verify(msgspec.json.encode(found), question).bound == pytest.approx(found.bound)
        assert draw_cluster(found)


def test_devices_come_from_the_inventory(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(SIZES)
    assert ask("sizes", path, Inventory(devices={"A": 2})).value == pytest.approx(10 / 1.5)
    with pytest.raises(UsageError, match="does not know max_devices"):
        ask("sizes", path, Inventory(devices={"A": 2}, max_devices=1))
    path.write_text(BACK + "give_back: 1")
    with pytest.raises(UsageError, match="takes no --inventory"):
        ask("reclaim", path, Inventory(devices={"A": 2}))
