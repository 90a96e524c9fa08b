"""Proposals of elastic jobs: compared with all ways to give devices, and wrong answers refused."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.cluster.greedy import ElasticJob, proposals
from esprof.analyzers.advisors.cluster.questions.ask import ask, verify
from esprof.analyzers.advisors.cluster.questions.proposals import (
    GrowingJob,
    ProposalsProblem,
    check_proposals,
    propose,
)
from esprof.analyzers.advisors.job.makespan import Device
from esprof.core.errors import InputError, MismatchError
from esprof.reports.terminal.advice.cluster import draw_cluster
from tests.cases.properties import thorough

replace = msgspec.structs.replace

CLUSTER = {"A": 3, "B": 2}


@st.composite
def growing(draw, name):
    n_est = draw(st.integers(1, 6))
    est_s = draw(st.dictionaries(st.sampled_from("AB"), st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=2))
    least = draw(st.integers(1, min(2, n_est)))
    kind = draw(st.sampled_from(sorted(est_s)))
    held = draw(st.sampled_from([{}, {kind: least}] if name == "a" and CLUSTER[kind] >= least else [{}]))
    return GrowingJob(id=name, n_est=n_est, est_s=est_s, update_s=0.05, min_devices=least, held=held)


def seconds(job, devices):
    """Step time: as many ESTs on each device as lets the slowest end first."""
    kinds = [kind for kind, count in devices.items() for _ in range(count)]
    counts = itertools.product(range(job.n_est + 1), repeat=len(kinds))
    ends = (
        [n * job.est_s[kind] for n, kind in zip(some, kinds, strict=True)] for some in counts if sum(some) == job.n_est
    )
    return min(map(max, ends)) + job.update_s


def ways(job):
    for more in itertools.product(*(range(CLUSTER[kind] + 1) for kind in job.est_s)):
        mine = dict(zip(job.est_s, more, strict=True))
        total = sum(mine.values())
        if all(mine.get(kind, 0) >= count for kind, count in job.held.items()) and (
            not total or job.min_devices <= total <= job.n_est
        ):
            yield mine


@thorough(40)
@given(growing("a"), growing("b"))
def test_the_bound_is_that_of_all_ways_to_give_devices(one, other):
    problem = ProposalsProblem(cluster=CLUSTER, jobs=(one, other))
    assert problem.fault() is None

    def speed(job, mine):
        fewest = min(seconds(job, {kind: job.min_devices}) for kind in job.est_s)
        return fewest / seconds(job, mine) if sum(mine.values()) else 0.0

    best = max(
        speed(one, mine) + speed(other, its)
        for mine, its in itertools.product(ways(one), ways(other))
        if all(mine.get(kind, 0) + its.get(kind, 0) <= count for kind, count in CLUSTER.items())
    )
    found = propose(problem)
    assert found.bound == pytest.approx(best)
    assert found.value <= best * (1 + 1e-9)
    assert check_proposals(found).bound == pytest.approx(best)


@thorough(60)
@given(st.integers(2, 12), st.sampled_from([0.1, 0.2]), st.integers(1, 4), st.integers(0, 6))
def test_a_proposal_has_the_largest_speedup_per_device(n_est, est_s, held, free):
    job = ElasticJob("a", n_est, {"A": Device("A", "A", est_s, est_s)})
    held = min(held, n_est)
    now = -(-n_est // held)
    # Speedup per device of each number of devices, without those that leave more than 30 % idle.
    gains = {
        more: (now / steps - 1) / more
        for more in range(1, min(free, held, n_est - held) + 1)
        for steps in [-(-n_est // (held + more))]
        if steps < now and 1 - n_est / (steps * (held + more)) <= 0.3
    }
    found = proposals(job, {"A": held}, {"A": free})
    if not gains:
        assert not found
    else:
        assert found[0].speedup_each - 1 == pytest.approx(max(gains.values()))


def jobs():
    large = GrowingJob(id="large", n_est=8, est_s={"A": 0.1}, held={"A": 2})
    small = GrowingJob(id="small", n_est=2, est_s={"A": 0.1})
    return ProposalsProblem(cluster={"A": 4}, jobs=(large, small))


def test_waiting_jobs_come_first():
    found = propose(jobs())
    assert [one.devices for one in found.decision] == [{"A": 2}, {"A": 2}]
    assert [one.speedup for one in found.decision] == [1.0, None]
    assert found.value == pytest.approx(2 + 2)
    assert found.baselines == {"the present devices": pytest.approx(2)}
    assert "summed over the jobs" in draw_cluster(found)


def test_no_devices_are_given_that_would_idle():
    # Four ESTs take two rounds on three devices as they do on two.
    job = GrowingJob(id="a", n_est=4, est_s={"A": 0.1}, held={"A": 2})
    found = propose(ProposalsProblem(cluster={"A": 3}, jobs=(job,)))
    assert found.decision[0].devices == {"A": 2}
    full = GrowingJob(id="b", n_est=1, est_s={"A": 0.1})
    waits = propose(ProposalsProblem(cluster={"A": 2}, jobs=(job, full)))
    assert waits.warnings == ("no devices are left for b",)


def test_wrong_answers_are_refused():
    found = propose(jobs())
    large, small = found.decision
    for wrong, says in (
        (replace(found, value=9.0, bound=9.0), "states the value 9"),
        (replace(found, decision=(large,)), "other jobs"),
        (replace(found, decision=(replace(large, devices={"A": 1}), small)), "loses some"),
        (replace(found, decision=(large, replace(small, devices={"A": 3}))), "from 1 to 2 are possible"),
        (replace(found, decision=(large, replace(small, ests_per_s=1.0))), "another speed"),
        (replace(found, decision=(replace(large, devices={"A": 4}, ests_per_s=40.0, speedup=2.0), small)), "6 devices"),
    ):
        with pytest.raises(MismatchError, match=says):
            verify(msgspec.json.encode(wrong), "proposals")


PROPOSALS = "cluster: {A: 4}\njobs: [{id: a, n_est: 4, est_s: {A: 0.1}, held: {A: 2}}]\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("cluster: {A: 4}", "cluster: {A: 1}", "more devices of type A than the cluster"),
        ("0.1", "0", "needs est_s above 0"),
        ("held: {A: 2}", "held: {B: 2}", "on which it cannot run"),
        ("held: {A: 2}", "held: {A: 5}", "has 5 devices"),
        ("n_est: 4", "n_est: 4, min_devices: 5", "min_devices from 1 to its 4 ESTs"),
        ("n_est: 4", "n_est: 4, update_s: -1", "negative or not finite"),
        ("n_est: 4", "n_ests: 4", "n_est"),
        ("n_est: 4", "n_est: 1000000", "1,000,000 ESTs"),
        ("{A: 4}", "{A: 9999}", "ways to give free devices"),
    ],
)
def test_invalid_problems_are_refused(tmp_path, old, new, says):
    path = tmp_path / "jobs.yaml"
    text = PROPOSALS if "9999" not in new else PROPOSALS.replace("n_est: 4", "n_est: 9999")
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=says) as refused:
        ask("proposals", path, None)
    assert str(path) in str(refused.value)
    assert refused.value.remedy
