"""Verdicts on predictions from pairs of runs."""

import numpy as np
import pytest

from esprof.analyzers.verified.answer import Pair, verified
from esprof.analyzers.verified.pairs import Pairs
from esprof.analyzers.verified.sides import Side
from esprof.reports.terminal.verified import draw_verified
from tests.cases.ledger import GLOO, predicted


def test_a_prediction_is_relative_to_the_present_step():
    """Recorded with steps of 200 µs, the job now takes 100 µs: the saving of a quarter and its interval are scaled."""
    step = Pairs([99, 101], [80, 80]).predicted(predicted("bucket_mb=4"))
    assert (step.us, step.low_us, step.high_us) == pytest.approx((75, 70, 80))


def test_the_error_is_relative_to_the_observed_step():
    outcome = Pairs([100, 100], [60, 60]).outcome(predicted("bucket_mb=4"), "verify")
    assert outcome.error_pct == pytest.approx(25)
    assert not outcome.held


@pytest.mark.parametrize(("after", "held"), [(69.9, False), (70, True), (75, True), (80, True), (80.1, False)])
def test_a_prediction_holds_if_the_step_is_in_its_interval(after, held):
    assert Pairs([100], [after]).outcome(predicted("bucket_mb=4"), "verify").held is held


def test_slowdowns_common_to_a_pair_do_not_widen_the_interval():
    """Each pair runs on a machine of different speed; the change saves a tenth on all of them."""
    before = np.array([100.0, 200.0, 150.0])
    pairs = Pairs(before.tolist(), (0.9 * before).tolist())
    assert pairs.observed.high_us - pairs.observed.low_us == pytest.approx(0, abs=1e-9)
    assert pairs.before.high_us - pairs.before.low_us > 100


def test_the_interval_of_the_observed_step_is_students_t():
    pairs = Pairs([100, 100, 100], [89, 90, 91])
    # s = 1, n = 3: 4.30 / sqrt(3).
    assert (pairs.observed.us, pairs.observed.high_us - 90) == pytest.approx((90, 2.483), abs=1e-3)


def test_intervals_have_their_nominal_coverage():
    """Three pairs with independent noise, and much more noise common to both sides, which the ratio cancels."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        shared = 100 * np.exp(0.2 * rng.standard_normal(3))
        before = shared * np.exp(0.01 * rng.standard_normal(3))
        after = 0.8 * shared * np.exp(0.01 * rng.standard_normal(3))
        pairs = Pairs(before.tolist(), after.tolist())
        held += pairs.observed.low_us <= 0.8 * pairs.before.us <= pairs.observed.high_us
    assert held / 400 > 0.92


def test_one_pair_has_no_interval():
    pairs = Pairs([100], [75])
    assert (pairs.before.low_us, pairs.observed.high_us) == (None, None)


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 2.0])])
def test_pairs_have_two_sides(before, after):
    with pytest.raises(ValueError, match="two sides"):
        Pairs(before, after)


def judged(after, prediction, max_error_pct=5.0, wait_us=None):
    before = Side(step_us=100.0, cpu_wait_us=0.0)
    pairs = [Pair(before=before, after=Side(step_us=us, cpu_wait_us=wait_us)) for us in after]
    return verified("bucket_mb=4", GLOO, pairs, (), prediction, steps=40, max_error_pct=max_error_pct)


@pytest.mark.parametrize(
    ("after", "verdict"), [([76.0, 76.0], "held"), ([81.0, 81.0], "missed"), ([69.0, 69.0], "missed")]
)
def test_verdicts(after, verdict):
    assert judged(after, predicted("bucket_mb=4")).verdict == verdict


def test_a_step_outside_the_interval_may_be_close():
    prediction = predicted("bucket_mb=4", saving_us=(49, 51))
    assert judged([77.0, 77.0], prediction).verdict == "close"
    assert judged([77.0, 77.0], prediction, max_error_pct=1).verdict == "missed"


def test_without_a_prediction_the_verdict_is_measured():
    judgement = judged([150.0, 150.0], None)
    assert (judgement.verdict, judgement.predicted, judgement.error_pct) == ("measured", None, None)


@pytest.mark.parametrize(
    ("after", "unprofiled_us", "codes"),
    [
        ([75.0, 75.0], None, []),
        ([60.0, 90.0], None, ["repeats-apart"]),
        ([75.0, 75.0], 100.0, ["profiled"]),  # 200 µs under the profiler.
        ([75.0, 75.0], 190.0, ["drifted"]),  # 100 µs now.
    ],
)
def test_weaknesses_of_a_result_are_warnings(after, unprofiled_us, codes):
    judgement = judged(after, predicted("bucket_mb=4", unprofiled_step_us=unprofiled_us))
    assert [warning.code for warning in judgement.warnings] == codes


def test_waiting_for_a_cpu_is_a_warning():
    judgement = judged([75.0, 75.0], predicted("bucket_mb=4"), wait_us=15.0)
    (warning,) = judgement.warnings
    assert (warning.code, "0 to 20 % of a step" in warning.message) == ("cpu-wait", True)


def test_a_prediction_inside_a_wide_interval_of_the_observed_step_is_neither_held_nor_missed():
    """0 to 683 ms were observed, and 75 predicted."""
    wide = judged([40, 90, 190], predicted("bucket_mb=4"))
    assert wide.verdict == "unclear"
    assert "cannot be said" in draw_verified(wide)
    assert judged([104, 105, 106], predicted("bucket_mb=4")).verdict == "missed"
    assert judged([105], predicted("bucket_mb=4")).verdict == "missed"
