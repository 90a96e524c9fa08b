"""Which recorded runs the trial of `esprof check` holds against each other, and what it counts; nothing is recorded."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.check_trial import ALONE, NEAR, RANKS, SAME, Measured, Recording, judge, pairs, plan, within
from benchmarks.jobs.planted import KINDS, STRETCH, TURNS
from esprof.analyzers.gate.baseline import Baseline, RunIdentity
from esprof.core.types import NS_PER_MS

IDENTITY = RunIdentity(world_size=1, hosts=1, devices={0: "cpu"}, versions={})


def recorded(number, kind=SAME, step_ms=10.0, **metrics) -> Measured:
    noise = np.exp(0.01 * np.random.default_rng(number).standard_normal(200))
    samples = {"step_time": tuple(step_ms * NS_PER_MS * noise)} | metrics
    baseline = Baseline(identity=IDENTITY, phase="plain", samples=samples)
    return Measured(Recording(number, 0, ALONE, kind), baseline, np.arange(1, 201), np.full(200, step_ms))


def numbers(found):
    return [(pair.baseline.recording.number, pair.run.recording.number) for pair in found]


def test_each_change_is_recorded_once_a_round_with_the_job_as_it_is_before_it():
    recordings = list(plan(2))
    assert [one.number for one in recordings] == list(range(len(recordings)))
    for job in RANKS:
        kinds = [one.kind for one in recordings if one.job == job and one.kind in KINDS]
        assert kinds[::2] == [SAME] * (len(kinds) // 2)
        assert Counter(kinds[1::2]) == dict.fromkeys(KINDS.keys() - {SAME}, 2)
    assert Counter(one.kind for one in recordings if one.kind in TURNS) == dict.fromkeys(TURNS, 4)


def test_runs_are_held_against_those_recorded_near_them():
    same = [recorded(number) for number in range(0, 20, 2)]
    changed = recorded(9, "drift")
    found = list(pairs(sorted([*same, changed], key=lambda one: one.recording.number)))
    of_same = [pair for pair in found if pair.kind == SAME]
    assert all(0 < run - baseline <= 2 * NEAR for baseline, run in numbers(of_same))
    assert {baseline for baseline, run in numbers(found) if run == 9} == {8, 10, 6}


@pytest.mark.parametrize("kind", [SAME, "drift"])
def test_disjoint_pairs_share_no_run(kind):
    runs = [recorded(number, SAME if number % 2 == 0 else "drift") for number in range(20)]
    disjoint = [pair for pair in pairs(runs) if pair.disjoint and pair.kind == kind]
    assert len(disjoint) == (5 if kind == SAME else 10)
    used = [number for pair in numbers(disjoint) for number in pair]
    assert len(used) == len(set(used))


def test_the_stretches_of_a_run_take_turns():
    run = recorded(0)
    (pair,) = within([run, recorded(1, "drift")], SAME)
    # The job's first step is not among them.
    step = dict(zip(range(1, 201), run.samples.samples["step_time"], strict=True))
    even, odd = (one.samples.samples["step_time"] for one in (pair.baseline, pair.run))
    assert even == tuple(step[n] for n in step if n // STRETCH % 2 == 0)
    assert odd == tuple(step[n] for n in step if n // STRETCH % 2 == 1)


def test_a_change_that_takes_turns_is_in_the_odd_stretches():
    work = [TURNS["turns+10%"](step, 300) for step in range(4 * STRETCH)]
    assert work == [*[1.0] * STRETCH, *[1.1] * STRETCH] * 2


def test_what_check_says_is_counted():
    slower = pairs([recorded(0), recorded(1), recorded(2, "work+20%", step_ms=12)])
    judged = judge(slower, "step_time:+5%")
    assert judged.outcomes() == {"unchanged": 1, "regressed": 2}
    assert judged.by_statistic("mean") == {"unchanged": 1, "regressed": 2}
    assert (judged.waited(), judged.hidden()) == (0, 0)
    assert max(judged.changes("median")) == pytest.approx(20, abs=1)
    assert len(judged.only(disjoint=True).of) == 2


def test_a_run_that_only_waited_for_a_cpu_is_counted_apart():
    quiet = recorded(0, cpu_wait=(0.0,) * 200)
    busy = recorded(1, step_ms=15, cpu_wait=(5.0 * NS_PER_MS,) * 200)
    judged = judge(pairs([quiet, busy]), "step_time:+5%")
    assert judged.outcomes() == {"inconclusive": 1}
    assert (judged.waited(), judged.hidden()) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "mean", "median"),
    [
        ("none", 0, 0),
        ("work+3%", 3, 3),
        ("work+20%", 20, 20),
        ("periodic", 10, 0),
        ("drift", 10, 10),
        ("hiccup", 10, 0),
    ],
)
def test_a_change_is_as_large_as_its_name_says(kind, mean, median):
    work = np.array([KINDS[kind](step, 300) for step in range(300)])
    assert 100 * (work.mean() - 1) == pytest.approx(mean, abs=0.5)
    assert 100 * (np.median(work) - 1) == pytest.approx(median, abs=0.5)
