"""Intervals and tests, against scipy, plain references, and series whose truth is known because they were made by hand."""

from itertools import combinations
from statistics import fmean, median, median_low

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom, chi2_contingency, sem, t, trim_mean, ttest_1samp, ttest_ind

from esprof.core import statistics
from esprof.core.statistics import (
    MIN_BLOCKS,
    autocorrelation_time,
    binomial_test,
    block_length,
    bootstrap,
    holm,
    homogeneity_test,
    least_of_events,
    mean_margin,
    means_of,
    medians_of,
    probability_larger,
    rank_test,
    share_interval,
    student_quantile,
    trimmed_mean,
    trimmed_test,
    two_sided_rank_test,
    welch_margin,
)


def test_students_quantiles_are_those_of_scipy_to_two_decimals():
    freedom = np.arange(1, 300)
    assert np.array([student_quantile(one) for one in freedom.tolist()]) == pytest.approx(
        t.ppf(0.975, freedom), abs=0.0051
    )


def test_one_value_has_no_margin():
    assert mean_margin(np.array([7.0])) == 0


def test_values_that_are_alike_have_no_margin():
    assert mean_margin(np.full(5, 7.0)) == 0


@pytest.mark.parametrize("count", [2, 3, 5, 10, 16, 17, 18, 30, 60, 100, 1000])
def test_the_margin_of_a_mean_is_that_of_students_t(count):
    values = np.arange(count, dtype=float)
    low, high = t.interval(0.95, count - 1, values.mean(), sem(values))
    assert mean_margin(values) == pytest.approx((high - low) / 2, rel=0.003)


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_few_steps_are_students_test(steps):
    extra = np.random.default_rng(steps).normal(1, 2, (steps, 50))
    assert trimmed_test(extra) == pytest.approx(ttest_1samp(extra, 0, alternative="greater").pvalue)


@pytest.mark.parametrize("steps", [3, 7, 20])
def test_of_noise_no_more_than_the_stated_share_passes(steps):
    noise = np.random.default_rng(1).normal(0, 1, (steps, 20_000))
    assert (trimmed_test(noise) < 0.01).mean() == pytest.approx(0.01, abs=0.004)


def test_heavy_tails_pass_no_more_often():
    noise = np.random.default_rng(2).standard_t(2, (7, 20_000))
    assert (trimmed_test(noise) < 0.01).mean() < 0.015


def test_one_odd_step_neither_makes_nor_unmakes_a_difference():
    rng = np.random.default_rng(3)
    usual = rng.normal(0, 1, 7)
    hiccup, missing = usual.copy(), usual + 40
    hiccup[3], missing[5] = 500, -300
    assert trimmed_test(np.array([hiccup, missing]).T) == pytest.approx([0.4, 0], abs=0.4)
    assert trimmed_test(missing[:, None])[0] < 1e-4
    assert trimmed_test(hiccup[:, None])[0] > 0.05


def test_of_one_step_nothing_is_said():
    assert trimmed_test(np.full((1, 3), 9.0)).tolist() == [1, 1, 1]


def test_what_takes_the_same_time_longer_in_each_step_is_no_trimmed_test():
    assert trimmed_test(np.array([[5.0, 0.0, -5.0]] * 4)).tolist() == [0, 0.5, 1]


def test_the_longest_and_the_shortest_are_left_out():
    assert trimmed_mean(np.array([[900.0], [1], [2], [3], [-900]])).tolist() == [2]
    assert trimmed_mean(np.array([[9.0], [1]])).tolist() == [5]


@pytest.mark.parametrize("count", [1, 4, 5, 12, 31])
def test_the_trimmed_mean_is_that_of_scipy(count):
    values = np.random.default_rng(count).standard_t(2, count)
    assert trimmed_mean(values.tolist()) == pytest.approx(trim_mean(values, 0.2))


def test_the_interval_of_a_difference_is_welchs():
    rng = np.random.default_rng(0)
    values, reference = rng.normal(5, 1, (8, 3)), rng.normal(3, 4, (20, 3))
    interval = ttest_ind(values, reference, equal_var=False).confidence_interval(0.9)
    np.testing.assert_allclose(welch_margin(values, reference, 0.9), (interval.high - interval.low) / 2)


def test_the_interval_of_a_difference_needs_two_values_on_each_side():
    assert np.isinf(welch_margin(np.ones((1, 2)), np.ones((9, 2)), 0.95)).all()
    assert (welch_margin(np.ones((3, 2)), np.ones((3, 2)), 0.95) == 0).all()


def test_the_binomial_test_is_the_sum_of_all_that_is_as_far_out():
    seen = np.arange(13)
    expected = [sum(binom.pmf(range(count, 13), 12, 0.3)) for count in seen]
    assert binomial_test(seen, 12, 0.3) == pytest.approx(expected)


@pytest.mark.parametrize(("count", "trials"), [(1, 10), (7, 20), (299, 300)])
def test_at_the_ends_of_a_shares_interval_what_was_seen_is_as_rare_as_it_may_be(count, trials):
    low, high = share_interval(count, trials)
    assert binom.sf(count - 1, trials, low) == pytest.approx(0.025)
    assert binom.cdf(count, trials, high) == pytest.approx(0.025)


def test_a_share_of_none_or_all_has_one_end():
    assert share_interval(0, 20) == (0, pytest.approx(1 - 0.025 ** (1 / 20)))
    assert share_interval(20, 20) == (pytest.approx(0.025 ** (1 / 20)), 1)


def test_the_two_sided_rank_test_counts_the_ways_to_share_out_the_ranks():
    ours, theirs = (1.0, 2.0, 4.0), (3.0, 5.0, 6.0, 7.0)
    sums = [sum(chosen) for chosen in combinations(range(1, 8), 3)]
    expected = 2 * np.mean(np.array(sums) <= 1 + 2 + 4)
    assert two_sided_rank_test(ours, theirs) == pytest.approx(expected)
    assert two_sided_rank_test(theirs, ours) == pytest.approx(expected)


@pytest.mark.parametrize("low", [False, True])
def test_medians_by_identity_are_those_of_the_values_of_each(low):
    rng = np.random.default_rng(8)
    identity, values = rng.integers(0, 9, 60) * 3, rng.integers(0, 1000, 60)
    wanted = np.array([5, 0, 24, 24, 99, 12])
    found, known = medians_of(identity, values, wanted, low=low)
    assert known.tolist() == np.isin(wanted, identity).tolist()
    middle = median_low if low else median
    assert found[known].tolist() == [int(middle(values[identity == one].tolist())) for one in wanted[known]]


def test_means_by_identity_are_rounded():
    identity, values = np.array([4, 7, 4, 7, 4]), np.array([1, 10, 2, 21, 5])
    found, known = means_of(identity, values, np.array([7, 5, 4]))
    assert known.tolist() == [True, False, True]
    assert found[known].tolist() == [round(fmean([10, 21])), round(fmean([1, 2, 5]))]


@pytest.mark.parametrize("of", [medians_of, means_of])
def test_of_no_values_no_identity_is_known(of):
    assert of(np.array([], int), np.array([], int), np.array([3, 4]))[1].tolist() == [False, False]


def median_at(values):
    """The median of the values at the places given."""
    return lambda at: np.median(values[at], axis=-1)


def correlated(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """Step times around 100 with 5 % of skewed noise, lag-1 correlation `rho` (AR(1) on the log)."""
    noise = lfilter([np.sqrt(1 - rho**2)], [1, -rho], rng.standard_normal(n + 100))[100:]
    return 100 * np.exp(0.05 * noise)


def significant(now: np.ndarray, before: np.ndarray, alpha: float = 0.01) -> bool:
    return rank_test(now, before, block_length(before, now)) < alpha


def test_autocorrelation_time_is_that_of_the_process():
    rng = np.random.default_rng(1)
    for rho in (0.0, 0.5, 0.8):
        estimates = [autocorrelation_time(correlated(rng, 2_000, rho)) for _ in range(20)]
        assert np.median(estimates) == pytest.approx((1 + rho) / (1 - rho), rel=0.2)


def test_autocorrelation_time_of_a_constant_is_one():
    assert autocorrelation_time(np.full(30, 7.0)) == 1.0


@pytest.mark.parametrize("n", [5, 10, 50, 1_000])
def test_blocks_leave_enough_of_themselves(n):
    rng = np.random.default_rng(2)
    length = block_length(correlated(rng, n, 0.9), correlated(rng, 2 * n, 0.9))
    assert length >= 1
    assert n // length >= MIN_BLOCKS


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_false_positives_stay_near_alpha(rho):
    """At 5 %, where 300 trials can tell: a test that took each step as independent fails this for ρ = 0.5 and 0.8."""
    rng = np.random.default_rng(3)
    trials = [significant(correlated(rng, 100, rho), correlated(rng, 100, rho), 0.05) for _ in range(300)]
    assert np.mean(trials) <= 0.10


def test_a_naive_rank_test_would_be_fooled():
    """The reason for the blocks: with blocks of one step, correlated noise is significant far too often."""
    rng = np.random.default_rng(3)
    naive = [rank_test(correlated(rng, 100, 0.8), correlated(rng, 100, 0.8), 1) < 0.05 for _ in range(300)]
    assert np.mean(naive) > 0.2


@pytest.mark.parametrize(("rho", "power"), [(0.0, 0.99), (0.5, 0.95), (0.8, 0.7)])
def test_power_to_see_ten_per_cent_in_a_hundred_steps(rho, power):
    rng = np.random.default_rng(4)
    trials = [significant(1.1 * correlated(rng, 100, rho), correlated(rng, 100, rho)) for _ in range(100)]
    assert np.mean(trials) >= power


def test_rank_test_has_one_side():
    rng = np.random.default_rng(5)
    slow, fast = correlated(rng, 60, 0) * 1.2, correlated(rng, 60, 0)
    assert rank_test(slow, fast, 3) < 0.001
    assert rank_test(fast, slow, 3) > 0.999


def test_rank_test_of_equal_constants_finds_nothing():
    assert rank_test(np.zeros(20), np.zeros(30), 2) == 1.0


def test_bootstrap_interval_covers_the_true_median():
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(60):
        values = correlated(rng, 150, 0.5)
        low, high = np.quantile(
            bootstrap(len(values), block_length(values, values), median_at(values), 2000, rng),
            [0.05, 0.95],
        )
        inside += low <= 100 <= high
    assert inside / 60 >= 0.8


def test_probability_larger_counts_ties_half():
    assert probability_larger(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == pytest.approx(0.875)


def test_holm_by_hand():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_bootstrap_is_the_same_for_the_same_seed():
    values = np.random.default_rng(7).random(40)
    first, second = (
        bootstrap(40, 4, lambda at: np.median(values[at], axis=-1), 2000, np.random.default_rng(0)) for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_a_long_series_is_drawn_in_parts(monkeypatch):
    values = np.arange(50.0)
    monkeypatch.setattr(statistics, "_VALUES_AT_ONCE", 120)
    drawn = bootstrap(50, 3, lambda at: values[at].mean(axis=-1), 501, np.random.default_rng(1))
    assert len(drawn) == 501
    assert drawn.mean() == pytest.approx(24.5, abs=1)


@pytest.mark.parametrize("length", [1, 7, 50, 80])
def test_a_series_is_as_long_as_asked_and_made_of_blocks_in_a_row(length):
    def check(at):
        assert at.shape[1] == length
        inside = np.arange(1, length) % 5 != 0
        assert (np.diff(at, axis=1)[:, inside] == 1).all()
        assert 0 <= at.min() <= at.max() < 30
        return at[:, 0].astype(float)

    assert set(bootstrap(30, 5, check, 400, np.random.default_rng(2), length)) == set(range(26))


def test_of_few_events_only_their_number_is_random():
    values = np.zeros(44)
    values[[11, 22, 35]] = 110.0, 120.0, 130.0
    assert least_of_events(values) == pytest.approx(110 * share_interval(3, 44)[0])
    assert 0 < least_of_events(values) < values.mean() / 4


def test_without_events_nothing_is_certain():
    assert least_of_events(np.zeros(44)) == 0
    assert least_of_events(np.full(44, 1.0), least=1.0) == 0


@pytest.mark.parametrize("draw", [np.random.Generator.exponential, np.random.Generator.pareto])
@pytest.mark.parametrize("steps", [3, 8, 24])
def test_the_mean_is_seldom_less_than_the_least_of_events(draw, steps):
    rng = np.random.default_rng(1)
    mean = {np.random.Generator.exponential: 1.0, np.random.Generator.pareto: 0.5}[draw]
    found = [least_of_events(draw(rng, **({"a": 3.0} if mean == 0.5 else {}), size=steps)) for _ in range(500)]
    assert np.mean(np.array(found) <= mean) >= 0.975


@pytest.mark.parametrize("counts", [[[35, 15], [15, 35]], [[9, 2, 7], [8, 5, 6], [20, 9, 11]]])
def test_homogeneity_is_pearsons_test(counts):
    assert homogeneity_test(np.array(counts)) == pytest.approx(chi2_contingency(counts, correction=False).pvalue)


@pytest.mark.parametrize("counts", [[[10, 20, 0], [20, 40, 0], [0, 0, 0]], [[5, 7]], [[5], [7]], [[0, 0], [0, 0]]])
def test_equal_shares_and_single_samples_are_homogeneous(counts):
    assert homogeneity_test(np.array(counts)) == pytest.approx(1.0)
