"""Times to a loss or score: censored, quantised, and compared by an exact test."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.comparison.evaluations import Evaluations, read_evaluations
from esprof.analyzers.comparison.to_target import compare_to_target, rank_permutation_test
from esprof.core.errors import InputError, UsageError
from tests.cases.properties import thorough

# Seconds to the target in the public logs of AlgoPerf v0.5, self-tuning: baseline and schedule-free AdamW. None: never.
OGBG = (7943, 8663, 8423, 7222, 8424), (5994, 6949, 5277, 5516, 5994)
WMT = (38683, 40361, 38682, None, 41203), (34471, 45376, 48732, 52086, 41182)


def training(values, interval_s=100.0, steps=10.0):
    at = np.arange(1, len(values) + 1)
    return Evaluations(path="log.csv", step=at * steps, time_s=at * interval_s, value=np.array(values, float))


def trainings(times):
    """Trainings with evaluations before and at these times; the target is 1."""
    return [
        Evaluations(
            path="log.csv",
            step=np.array([10.0, 20.0]),
            time_s=np.array([100.0, 90_000 if at is None else at]),
            value=np.array([0.5, 0.9 if at is None else 1.0]),
        )
        for at in times
    ]


def of(found, name="seconds"):
    return next(one for one in found.measures if one.name == name)


def test_the_published_trainings_on_ogbg_differ():
    found = compare_to_target(*map(trainings, OGBG), 1, "higher")
    assert of(found).ratio == pytest.approx(1.405, abs=5e-4)
    assert (of(found).low, of(found).high) == pytest.approx((1.21, 1.60), abs=0.01)
    assert of(found).p == pytest.approx(2 / 252)
    assert found.smallest_p == pytest.approx(2 / 252)
    assert found.outcome == "b"
    assert found.verdict.startswith("B reaches the target in fewer seconds, ratio 1.41 (1.20 to 1.60), p = 0.0079.")


def test_the_published_trainings_on_wmt_do_not_differ():
    found = compare_to_target(*map(trainings, WMT), 1, "higher")
    assert of(found).ratio == pytest.approx(0.889, abs=5e-4)
    assert of(found).p == pytest.approx(0.69, abs=5e-3)
    assert found.outcome == "no difference shown"
    assert [run.reached for run in found.a] == [True, True, True, False, True]
    assert "4 of 5 A and 5 of 5 B reach it" in found.verdict


@pytest.mark.parametrize(
    ("number", "p", "outcome"), [(1, 1, "too few runs"), (3, 0.1, "too few runs"), (4, 2 / 70, "b")]
)
def test_three_trainings_cannot_decide_and_four_can(number, p, outcome):
    found = compare_to_target(trainings(range(900, 900 + number)), trainings(range(200, 200 + number)), 1, "higher")
    assert found.smallest_p == pytest.approx(p)
    assert of(found).p == pytest.approx(p)
    assert found.outcome == outcome
    assert ("cannot decide" in found.verdict) == (outcome == "too few runs")


def test_steps_and_seconds_of_a_step_are_apart():
    # B needs twice the steps, each in a third of the time.
    a = [training([3, 2, 1, 1, 1, 1 + seed / 100], interval_s=300) for seed in range(5)]
    b = [training([3, 3, 2, 2, 2, 1 - seed / 100], interval_s=100) for seed in range(5)]
    found = compare_to_target(a, b, 1)
    assert [(one.name, one.ratio) for one in found.measures] == [
        ("seconds", pytest.approx(1.5)),
        ("steps", pytest.approx(0.5)),
        ("seconds_per_step", pytest.approx(3)),
    ]
    run = found.b[0]
    assert (run.step_before, run.step, run.seconds_before, run.seconds) == (50, 60, 500, 600)


def test_side_a_may_be_the_sooner_one():
    assert compare_to_target(trainings(OGBG[1]), trainings(OGBG[0]), 1, "higher").outcome == "a"


def test_a_side_that_never_arrives_is_slower():
    found = compare_to_target(trainings([None] * 5), trainings(OGBG[1]), 1, "higher")
    assert (of(found).median_a, of(found).ratio, of(found).high) == (None, None, None)
    assert found.outcome == "b"
    assert compare_to_target(trainings(OGBG[1]), trainings([None] * 5), 1, "higher").outcome == "a"
    nobody = compare_to_target(trainings([None] * 5), trainings([None] * 5), 1, "higher")
    assert nobody.outcome == "no difference shown"
    assert (of(nobody).p, of(nobody).low) == (1, 0)


def test_the_median_looks_back_only():
    run = compare_to_target([training([3, 1, 3, 1, 1, 9])], [training([9, 9])], 1, window=3)
    assert [one.step for one in (*run.a, *run.b)] == [40, None]
    assert compare_to_target([training([3, 1, 3, 1])], [training([9])], 1).a[0].step == 20


def test_other_targets_may_turn_the_result():
    a, b = [training([1.04, 1.04, 1.04, 1.0])] * 4, [training([1.2, 1.0, 0.9, 0.9])] * 4
    ratios = {round(one.target, 2): one.ratio for one in compare_to_target(a, b, 1).nearby}
    assert ratios[1.05] == 0.5
    assert compare_to_target(a, b, 1).measures[0].ratio == 2
    assert ratios[0.95] is None


def test_logs_without_a_common_measure_are_an_error():
    one = training([3.0, 2.0])
    steps, times = dataclasses.replace(one, time_s=None), dataclasses.replace(one, step=None)
    with pytest.raises(UsageError, match="only steps"):
        compare_to_target([steps, steps], [times, times], 2.5)


def test_logs_without_times_compare_steps():
    logs = [Evaluations(path="log.csv", step=np.array([at]), time_s=None, value=np.array([1.0])) for at in range(1, 9)]
    found = compare_to_target(logs[4:], logs[:4], 1)
    assert [one.name for one in found.measures] == ["steps"]
    assert set(found.declined) == {"seconds", "seconds_per_step"}
    assert "fewer steps" in found.verdict


VALUES = st.lists(st.sampled_from([1.0, 2.0, 3.0, math.inf]), min_size=2, max_size=4)


@thorough()
@given(VALUES, VALUES)
def test_the_p_value_counts_all_assignments(a, b):
    pooled = [*a, *b]
    rank = [sum(other < one for other in pooled) + sum(other == one for other in pooled) / 2 for one in pooled]

    def difference(chosen):
        others = [rank[at] for at in range(len(pooled)) if at not in chosen]
        return np.mean([rank[at] for at in chosen]) - np.mean(others)

    seen = difference(range(len(a)))
    drawn = [difference(chosen) for chosen in itertools.combinations(range(len(pooled)), len(a))]
    sided = [sum(one >= seen - 1e-9 for one in drawn), sum(one <= seen + 1e-9 for one in drawn)]
    assert rank_permutation_test(np.array(a), np.array(b)) == pytest.approx(min(1, 2 * min(sided) / len(drawn)))


def read(folder, text, columns=None, name="log.csv"):
    path = folder / name
    path.write_text(text)
    return read_evaluations(path, columns or {})


def test_the_columns_of_algoperf(tmp_path):
    text = "accumulated_submission_time,global_step,validation/mean_average_precision\n10.5,100,0.1\n20.5,200,\n30,300,0.3\n"
    log = read(tmp_path, text, {"metric": "validation/mean_average_precision"})
    assert log.value.tolist() == [0.1, 0.3]
    assert log.step.tolist() == [100, 300]
    assert log.time_s.tolist() == [10.5, 30]


def test_json_lines(tmp_path):
    log = read(
        tmp_path, '{"step": 1, "loss": 2.5, "lr": 1}\n{"step": 2, "lr": 1}\n{"step": 3, "loss": 2}\n', name="a.jsonl"
    )
    assert (log.step.tolist(), log.value.tolist(), log.time_s) == ([1, 3], [2.5, 2], None)


@pytest.mark.parametrize(
    ("text", "columns", "reason"),
    [
        ("", {}, "is not a log of evaluations"),
        ("step,loss\n", {}, "has no evaluation"),
        ("step,loss\n1,\n", {}, "has no evaluation"),
        ("step,acc\n1,2\n", {}, "has no column of a loss"),
        ("step,acc\n1,2\n", {"metric": "a"}, "has no column 'a', only step, acc"),
        ("epoch,loss\n1,2\n", {}, "has neither steps nor times"),
        ("step,loss\n1,high\n", {}, "holds other values than numbers"),
        (f"step,loss\n{10**400},1\n", {}, "holds other values than numbers"),
        ("step,loss\n2,1\n1,1\n", {}, "does not ascend"),
        ("step,loss\n,1\n", {}, "does not ascend"),
        ("step,loss\n-1,1\n", {}, "does not ascend"),
    ],
)
def test_what_is_no_log_of_evaluations_is_an_error(tmp_path, text, columns, reason):
    with pytest.raises(InputError, match=reason):
        read(tmp_path, text, columns)


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_evaluations(tmp_path / "missing.csv", {})
    with pytest.raises(InputError, match="is not a log of evaluations"):
        read(tmp_path, "{", name="a.jsonl")
    with pytest.raises(UsageError, match="names 'start'"):
        read(tmp_path, "step,loss\n1,1\n", {"start": "step"})
