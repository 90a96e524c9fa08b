"""Advice for a mix of jobs: published optima, small mixes compared with all decisions, valid and invalid proofs."""

import itertools
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.cluster.answer import MixAdvice, advise, check
from esprof.analyzers.advisors.cluster.gavel import with_throughputs
from esprof.analyzers.advisors.cluster.mix import Mix, SharingJob, Together, read_mix
from esprof.analyzers.advisors.cluster.policies import pose
from esprof.analyzers.advisors.cluster.program import Infeasible, solve
from esprof.core.errors import InputError, MismatchError, UsageError
from tests.cases.properties import thorough

GAVEL = Path(__file__).parents[6] / "shared/data/gavel"
OPTIMA = {
    "fairness": "max_min_fairness",
    "makespan": "makespan",
    "finish-time": "finish_time_fairness",
    "throughput": "sum_throughput",
}


@pytest.mark.parametrize("objective", OPTIMA)
@pytest.mark.parametrize("name", ["small10", "rand32"])
def test_gavels_optima(name, objective):
    path = GAVEL / f"{name}.json"
    if not path.exists():
        pytest.skip("Gavel's throughputs are not here")
    known = json.loads(path.read_text())["optima"][OPTIMA[objective]]
    advice = advise(read_mix(path), objective)
    assert advice.value == pytest.approx(known["value"] if isinstance(known, dict) else known, rel=1e-6)
    assert advice.certificate.gap < 1e-7
    check(advice)


def job(name, rates, **more):
    return SharingJob(id=name, throughput_steps_per_s=rates, **{"steps": 100.0, "workload": name} | more)


rates = st.sampled_from([0.0, 1.0, 2.0, 5.0])
jobs = st.lists(
    st.builds(
        lambda a, b, devices, weight, steps: ({"A": a, "B": b}, devices, weight, steps),
        rates,
        rates,
        st.integers(1, 2),
        st.sampled_from([1.0, 2.0]),
        st.sampled_from([10.0, 100.0]),
    ).filter(lambda drawn: any(drawn[0].values())),
    min_size=1,
    max_size=5,
)


def mix_of(drawn, **more):
    listed = [
        job(str(at), rates, scale_factor=devices, weight=weight, steps=steps, workload="w", **more)
        for at, (rates, devices, weight, steps) in enumerate(drawn)
    ]
    return Mix(cluster={"A": 2, "B": 3}, jobs=tuple(listed))


@pytest.mark.parametrize("objective", OPTIMA)
@thorough()
@given(drawn=jobs)
def test_every_decision_is_proven_and_unchanged_by_merging(objective, drawn):
    mix = mix_of([*drawn, *drawn])  # Each job twice: they are merged.
    advice = advise(mix, objective)
    apart = pose(mix, objective, merged=False)
    assert len(pose(mix, objective).sharing.classes) < len(mix.jobs)
    assert advice.value == pytest.approx(apart.value_of(solve(apart.program).value), rel=1e-7)
    assert check(advice).gap < 1e-7
    held = dict.fromkeys(mix.cluster, 0.0)
    for one in advice.decision:
        held[one.device] += one.share * next(job.scale_factor for job in mix.jobs if job.name == one.job)
    assert all(held[kind] <= count + 1e-6 for kind, count in mix.cluster.items())


def decisions(mix):
    """Every decision with each job on one type or none."""
    for where in itertools.product([None, *mix.cluster], repeat=len(mix.jobs)):
        held = dict.fromkeys(mix.cluster, 0)
        for job, kind in zip(mix.jobs, where, strict=True):
            if kind is not None:
                held[kind] += job.scale_factor
        if all(held[kind] <= count for kind, count in mix.cluster.items()):
            yield [
                job.throughput_steps_per_s.get(kind, 0.0) if kind else 0.0
                for job, kind in zip(mix.jobs, where, strict=True)
            ]


@thorough()
@given(drawn=jobs)
def test_the_decision_in_integers_is_optimal(drawn):
    mix = mix_of(drawn)
    assert advise(mix, "throughput", one_type=True).value == pytest.approx(max(map(sum, decisions(mix))))
    longest = [
        max(job.steps / rate for job, rate in zip(mix.jobs, made, strict=True)) for made in decisions(mix) if all(made)
    ]
    if not longest:
        with pytest.raises(Infeasible, match="at once"):
            advise(mix, "makespan", one_type=True)
    else:
        assert advise(mix, "makespan", one_type=True).value == pytest.approx(min(longest))


def test_the_cheapest_decision_meets_deadlines():
    # 3,600 steps: an hour on A at 10, or two hours on B at 3.
    rates = {"A": 1.0, "B": 0.5}
    prices = {"A": 10.0, "B": 3.0}
    free = Mix(cluster={"A": 1, "B": 1}, jobs=(job("j", rates, steps=3600.0),))
    assert advise(free, "cost", prices).value == pytest.approx(6)
    hurried = Mix(cluster={"A": 1, "B": 1}, jobs=(job("j", rates, steps=3600.0, deadline_s=5400.0),))
    advice = advise(hurried, "cost", prices)
    assert advice.value == pytest.approx(0.5 * 10 + 1.0 * 3)  # Half an hour of A, and an hour of B.
    check(advice)


def test_conflicting_deadlines_are_an_error():
    each = job("x", {"A": 1.0}, steps=3600.0, deadline_s=5400.0)
    mix = Mix(cluster={"A": 1}, jobs=(each, msgspec.structs.replace(each, id="y")))
    with pytest.raises(Infeasible):
        advise(mix, "cost", {"A": 1.0})


def test_two_deadlines_make_two_intervals():
    soon = job("soon", {"A": 1.0}, steps=3600.0, deadline_s=3600.0)
    late = job("late", {"A": 1.0}, steps=3600.0, deadline_s=7200.0)
    advice = advise(Mix(cluster={"A": 1}, jobs=(soon, late)), "cost", {"A": 1.0})
    assert {(one.job, one.until_h) for one in advice.decision} == {("soon", 1.0), ("late", 2.0)}
    check(advice)


def test_jobs_with_little_interference_share_a_device():
    shared = Together(with_="w", throughput_steps_per_s={"A": (0.9, 0.9)})
    one = job("a", {"A": 1.0}, workload="w", together=(shared,))
    mix = Mix(cluster={"A": 1}, jobs=(one, msgspec.structs.replace(one, id="b")))
    advice = advise(mix, "throughput")
    assert advice.value == pytest.approx(1.8)
    assert [(given.job, given.with_) for given in advice.decision] == [("a", "b")]
    assert check(advice).gap < 1e-7


def test_modified_advice_is_rejected():
    mix = mix_of([({"A": 5.0, "B": 1.0}, 1, 1.0, 100.0), ({"A": 2.0, "B": 2.0}, 2, 2.0, 10.0)])
    advice = advise(mix, "makespan")
    first = advice.decision[0]
    more = msgspec.structs.replace(first, share=first.share + 1.5)
    changes = [
        {"decision": (more, *advice.decision[1:])},
        {"value": advice.value * 0.9},
        {"decision": advice.decision[1:]},
        {"certificate": msgspec.structs.replace(advice.certificate, duals={})},
        {"certificate": msgspec.structs.replace(advice.certificate, duals={"time of nobody": 1.0})},
        {"mix": msgspec.structs.replace(mix, cluster={"A": 1, "B": 1})},
    ]
    for change in changes:
        with pytest.raises(MismatchError):
            check(msgspec.structs.replace(advice, **change))
    check(msgspec.json.decode(msgspec.json.encode(advice), type=MixAdvice))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs: []", "lists no job"),
        (
            "jobs: [{id: a, throughput_steps_per_s: {A: 1}}, {id: a, throughput_steps_per_s: {A: 1}}]",
            "lists job a twice",
        ),
        ("jobs: [{id: a, throughput_steps_per_s: {C: 1}}]", "no throughput on any type of the cluster (A)"),
        ("jobs: [{id: a, scale_factor: 9, throughput_steps_per_s: {A: 1}}]", "needs 9 devices of one type"),
        ("jobs: [{id: a, throughput_steps_per_s: {A: -1}}]", "negative"),
        ("jobs: [{id: a, weight: 0, throughput_steps_per_s: {A: 1}}]", "weight above 0"),
        ("jobs: [{id: a}]", "no throughput on any type"),
        ("jobs: {", "jobs.yaml"),
    ],
)
def test_impossible_jobs_are_rejected_with_a_reason(tmp_path, text, says):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_mix(path, {"A": 2})
    assert says in str(refused.value)


def test_a_small_file_that_aliases_make_huge_is_refused(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(f"a: &a [1]\nb: &b [{'*a, ' * 200}]\nc: &c [{'*b, ' * 200}]\njobs: [{'*c, ' * 200}]")
    with pytest.raises(InputError, match="holds more than 1,000,000 values"):
        read_mix(path, {"A": 2})


def test_missing_throughputs_come_from_gavel(tmp_path):
    path, table = tmp_path / "jobs.yaml", tmp_path / "throughputs.json"
    path.write_text(
        "jobs: [{id: a, workload: W, scale_factor: 2}, {id: b, workload: V, throughput_steps_per_s: {A: 1}}]"
    )
    mine, pair = "('W', 2)", [0.9, 0.8]
    table.write_text(json.dumps({"A": {mine: {"null": 3.0, mine: pair, "('V', 1)": [1, 1], "('X', 2)": [0, 0]}}}))
    first, second = read_mix(path, {"A": 2}, lambda jobs: with_throughputs(jobs, table)).jobs
    assert first.throughput_steps_per_s == {"A": 3.0}
    assert [(one.with_, one.throughput_steps_per_s) for one in first.together] == [("W", {"A": (0.9, 0.8)})]
    assert second.together == ()
    path.write_text("jobs: [{id: a, workload: unknown}]")
    with pytest.raises(InputError, match="no throughputs of 'unknown'"):
        read_mix(path, {"A": 2}, lambda jobs: with_throughputs(jobs, table))


def test_missing_inputs_of_an_objective_are_named(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: [{id: a, throughput_steps_per_s: {A: 1}}]")
    with pytest.raises(UsageError, match="names no devices"):
        read_mix(path)
    mix = read_mix(path, {"A": 1})
    with pytest.raises(UsageError, match="number of remaining steps"):
        advise(mix, "makespan")
    with pytest.raises(UsageError, match="price of A"):
        advise(mix, "cost")
