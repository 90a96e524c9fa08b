"""Cuts of MIG-capable GPUs: small instances compared with all cuts, and wrong answers refused."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.cluster.mig import cuts, largest_cuts, profiles
from esprof.analyzers.advisors.cluster.program import Infeasible
from esprof.analyzers.advisors.cluster.questions.ask import ask, verify
from esprof.analyzers.advisors.cluster.questions.slices import ServedJob, SlicesProblem, check_slices, cut_devices
from esprof.analyzers.advisors.job.growth import Inventory, Model
from esprof.core.errors import InputError, MismatchError
from esprof.reports.terminal.advice.cluster import draw_cluster
from tests.cases.properties import thorough

replace = msgspec.structs.replace

A100 = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def problem(*jobs, count=4):
    return SlicesProblem(
        cluster={"a100": Model(count=count, mig=True, memory_gb=80)},
        jobs=tuple(
            ServedJob(id=at, demand_per_s=demand, throughput_per_s={f"a100/{name}": n for name, n in rates.items()})
            for at, (demand, rates) in enumerate(jobs)
        ),
    )


def test_the_published_numbers_of_cuts():
    # 77 sets of slices, and the empty one; without the double memory 37.
    assert len(cuts()) == 78
    assert sum(not cut[1] for cut in cuts()) == 38
    assert (7, 0, 0, 0, 0, 0) in largest_cuts()
    assert (0, 0, 0, 1, 1, 0) in largest_cuts()
    assert (0, 0, 0, 2, 0, 0) in largest_cuts()  # A slice for computation is left, but no memory.
    assert (1, 0, 0, 2, 0, 0) not in cuts()


def test_a_profile_may_belong_to_several_gpus():
    assert [every[-1] for every in profiles({"1g.10gb"})] == ["7g.40gb", "7g.80gb"]
    assert profiles({"1g.10gb"}, 80) == [A100]
    assert profiles({"3g.30gb"}) == []


served = st.tuples(
    st.integers(1, 20).map(float),
    st.dictionaries(st.sampled_from(A100), st.integers(1, 9).map(float), min_size=1, max_size=3),
)


def least_gpus(jobs, most):
    """The fewest GPUs for two jobs, by trying all cuts and all ways to divide their slices; None if `most` are too few."""
    for count in range(1, most + 1):
        for chosen in itertools.combinations_with_replacement(largest_cuts(), count):
            slices = [sum(column) for column in zip(*chosen, strict=True)]
            for mine in itertools.product(*(range(n + 1) for n in slices)):
                other = [n - m for n, m in zip(slices, mine, strict=True)]
                if all(
                    sum(rates.get(name, 0) * n for name, n in zip(A100, got, strict=True)) >= demand
                    for (demand, rates), got in zip(jobs, (mine, other), strict=True)
                ):
                    return count
    return None


@thorough(60)
@given(served, served)
def test_no_cuts_need_fewer_gpus(one, other):
    found = cut_devices(problem(one, other, count=40))
    least = least_gpus([one, other], 2)
    assert found.value == least if least is not None else found.value > 2
    assert found.bound == found.value
    assert check_slices(found).gap == 0


def test_too_few_devices_are_an_error():
    with pytest.raises(Infeasible, match="cannot serve all jobs") as refused:
        cut_devices(problem((400.0, {"1g.10gb": 50.0}), count=1))
    assert "inventory" in refused.value.remedy


def test_slices_save_gpus():
    # A whole GPU serves 350 a second, and its seven slices 7 x 60.
    found = cut_devices(problem((400.0, {"1g.10gb": 60.0, "7g.80gb": 350.0})))
    assert found.value == 1
    assert found.baselines == {"whole devices for each job": 2.0}
    assert found.decision.jobs[0].slices == {"a100/1g.10gb": 7}
    text = draw_cluster(found)
    assert text.startswith("1 device\n")
    assert "7 a100/1g.10gb" in text


def test_devices_that_are_not_cut_serve_as_well():
    one = ServedJob(id="a", demand_per_s=10.0, throughput_per_s={"v100": 6.0, "a100/1g.10gb": 1.0})
    both = SlicesProblem(cluster={"v100": 2, "a100": Model(count=1, mig=True, memory_gb=80)}, jobs=(one,))
    assert cut_devices(both).value == 2
    fixed = SlicesProblem(cluster={"v100": 2, "a100": Model(count=1, memory_gb=80)}, jobs=(one,))
    assert {device.device for device in cut_devices(fixed).decision.devices} == {"v100"}


def test_wrong_answers_are_refused():
    found = cut_devices(problem((400.0, {"1g.10gb": 60.0, "7g.80gb": 350.0})))
    (device,), (job,) = found.decision.devices, found.decision.jobs

    def decided(**changes):
        return replace(found, decision=replace(found.decision, **changes))

    whole = decided(
        devices=(replace(device, count=2, slices={"a100/7g.80gb": 1}),),
        jobs=(replace(job, slices={"a100/7g.80gb": 2}),),
    )
    for wrong, says in (
        (decided(devices=(replace(device, slices={"a100/1g.10gb": 8}),)), "cannot be cut"),
        (decided(devices=(replace(device, count=5),)), "need 5 devices"),
        (decided(devices=(replace(device, device="x"),)), "no 1 devices of type x"),
        (decided(jobs=(replace(job, slices={"a100/1g.10gb": 6}),)), "serves 360 of 400"),
        (decided(jobs=(replace(job, slices={"a100/1g.10gb": 8}),)), "more slices a100/1g.10gb are used"),
        (decided(jobs=(replace(job, slices={"a100/2g.20gb": 8}),)), "on which it cannot run"),
        (decided(jobs=()), "other jobs"),
        (replace(whole, value=2.0, bound=2.0), "states the bound"),
    ):
        with pytest.raises(MismatchError, match=says):
            verify(msgspec.json.encode(wrong), "slices")


SLICES = "jobs: [{id: a, demand_per_s: 10, throughput_per_s: {a100/1g.10gb: 1.5}}]\n"
MIG = "cluster: {a100: {count: 1, mig: true, memory_gb: 80}}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SLICES + MIG.replace(", memory_gb: 80", ""), "may have 40gb or 80gb: its memory_gb is needed"),
        (SLICES + MIG.replace("80", "24"), "no known MIG-capable GPU with 24 GB has the slices"),
        (SLICES.replace("1g.10gb", "5g.10gb") + MIG, "no known MIG-capable GPU"),
        (SLICES + "cluster: {a100: 1}", "no throughput on any device or slice"),
        (SLICES.replace("1.5", ".nan") + MIG, "above 0"),
        (SLICES + MIG.replace("count: 1", "count: 0"), "at least one device"),
        ("jobs: []\n" + MIG, "at least one job"),
    ],
)
def test_invalid_problems_are_refused(tmp_path, text, says):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as refused:
        ask("slices", path, None)
    assert str(path) in str(refused.value)
    assert refused.value.remedy


def test_the_inventory_says_what_may_be_cut(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(SLICES)
    found = ask("slices", path, Inventory(devices={"a100": Model(count=2, mig=True, memory_gb=80)}))
    assert found.value == 1
    assert verify(msgspec.json.encode(found), "slices").bound == 1
