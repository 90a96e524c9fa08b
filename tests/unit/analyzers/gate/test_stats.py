"""The statistics of the gate, on series whose truth is known because they were made by hand."""

import numpy as np
import pytest
from scipy.signal import lfilter

from esprof.analyzers.gate import stats
from esprof.core.statistics import bootstrap


def medians_of(values):
    """The median of the values at the places given."""
    return lambda at: np.median(values[at], axis=-1)


def correlated(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """Step times around 100 with 5 % of skewed noise, lag-1 correlation `rho` (AR(1) on the log)."""
    noise = lfilter([np.sqrt(1 - rho**2)], [1, -rho], rng.standard_normal(n + 100))[100:]
    return 100 * np.exp(0.05 * noise)


def significant(now: np.ndarray, before: np.ndarray, alpha: float = 0.01) -> bool:
    return stats.rank_test(now, before, stats.block_length(before, now)) < alpha


def test_autocorrelation_time_is_that_of_the_process():
    rng = np.random.default_rng(1)
    for rho in (0.0, 0.5, 0.8):
        estimates = [stats.autocorrelation_time(correlated(rng, 2_000, rho)) for _ in range(20)]
        assert np.median(estimates) == pytest.approx((1 + rho) / (1 - rho), rel=0.2)


def test_autocorrelation_time_of_a_constant_is_one():
    assert stats.autocorrelation_time(np.full(30, 7.0)) == 1.0


@pytest.mark.parametrize("n", [5, 10, 50, 1_000])
def test_blocks_leave_enough_of_themselves(n):
    rng = np.random.default_rng(2)
    length = stats.block_length(correlated(rng, n, 0.9), correlated(rng, 2 * n, 0.9))
    assert length >= 1
    assert n // length >= stats.FEWEST_BLOCKS


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_false_positives_stay_near_alpha(rho):
    """At 5 %, where 300 trials can tell: a test that took each step as independent fails this for ρ = 0.5 and 0.8."""
    rng = np.random.default_rng(3)
    trials = [significant(correlated(rng, 100, rho), correlated(rng, 100, rho), 0.05) for _ in range(300)]
    assert np.mean(trials) <= 0.10


def test_a_naive_rank_test_would_be_fooled():
    """The reason for the blocks: with blocks of one step, correlated noise is significant far too often."""
    rng = np.random.default_rng(3)
    naive = [stats.rank_test(correlated(rng, 100, 0.8), correlated(rng, 100, 0.8), 1) < 0.05 for _ in range(300)]
    assert np.mean(naive) > 0.2


@pytest.mark.parametrize(("rho", "power"), [(0.0, 0.99), (0.5, 0.95), (0.8, 0.7)])
def test_power_to_see_ten_per_cent_in_a_hundred_steps(rho, power):
    rng = np.random.default_rng(4)
    trials = [significant(1.1 * correlated(rng, 100, rho), correlated(rng, 100, rho)) for _ in range(100)]
    assert np.mean(trials) >= power


def test_rank_test_has_one_side():
    rng = np.random.default_rng(5)
    slow, fast = correlated(rng, 60, 0) * 1.2, correlated(rng, 60, 0)
    assert stats.rank_test(slow, fast, 3) < 0.001
    assert stats.rank_test(fast, slow, 3) > 0.999


def test_rank_test_of_equal_constants_finds_nothing():
    assert stats.rank_test(np.zeros(20), np.zeros(30), 2) == 1.0


def test_bootstrap_interval_covers_the_true_median():
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(60):
        values = correlated(rng, 150, 0.5)
        low, high = np.quantile(
            bootstrap(len(values), stats.block_length(values, values), medians_of(values), 2000, rng),
            [0.05, 0.95],
        )
        inside += low <= 100 <= high
    assert inside / 60 >= 0.8


def test_the_mean_rate_is_what_was_done_in_all_of_the_time():
    samples, times = np.array([1.0, 100, 1]), np.array([0.1, 0.4, 0.1])
    assert stats.mean_rate(samples / times, times) == pytest.approx(102 / 0.6)
    assert stats.mean_rate(np.array([[0.0, 4], [-1, -3]]), np.ones((2, 2))).tolist() == [2, -2]


def test_probability_larger_counts_ties_half():
    assert stats.probability_larger(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == pytest.approx(0.875)


def test_holm_by_hand():
    assert stats.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
