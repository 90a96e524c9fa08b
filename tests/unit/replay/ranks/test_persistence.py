"""The test on amounts: what it knows of normal noise, and that one odd step neither makes nor unmakes a difference."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from esprof.replay.ranks.persistence import chance, trimmed_mean


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_few_steps_are_students_test(steps):
    extra = np.random.default_rng(steps).normal(1, 2, (steps, 50))
    assert chance(extra) == pytest.approx(ttest_1samp(extra, 0, alternative="greater").pvalue)


@pytest.mark.parametrize("steps", [3, 7, 20])
def test_of_noise_no_more_than_the_stated_share_passes(steps):
    noise = np.random.default_rng(1).normal(0, 1, (steps, 20_000))
    assert (chance(noise) < 0.01).mean() == pytest.approx(0.01, abs=0.004)


def test_heavy_tails_pass_no_more_often():
    noise = np.random.default_rng(2).standard_t(2, (7, 20_000))
    assert (chance(noise) < 0.01).mean() < 0.015


def test_one_odd_step_neither_makes_nor_unmakes_a_difference():
    rng = np.random.default_rng(3)
    usual = rng.normal(0, 1, 7)
    hiccup, missing = usual.copy(), usual + 40
    hiccup[3], missing[5] = 500, -300
    assert chance(np.array([hiccup, missing]).T) == pytest.approx([0.4, 0], abs=0.4)
    assert chance(missing[:, None])[0] < 1e-4
    assert chance(hiccup[:, None])[0] > 0.05


def test_of_one_step_nothing_is_said():
    assert chance(np.full((1, 3), 9.0)).tolist() == [1, 1, 1]


def test_what_takes_the_same_time_longer_in_each_step_is_no_chance():
    assert chance(np.array([[5.0, 0.0, -5.0]] * 4)).tolist() == [0, 0.5, 1]


def test_the_longest_and_the_shortest_are_left_out():
    assert trimmed_mean(np.array([[900.0], [1], [2], [3], [-900]])).tolist() == [2]
    assert trimmed_mean(np.array([[9.0], [1]])).tolist() == [5]
