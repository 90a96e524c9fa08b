"""Curves by size: between measured sizes, beyond them, and the line beside, against numpy and a plain search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.run.curve import MAX_FACTOR_BEYOND, BeyondCurveError, Curve
from tests.cases.properties import thorough

points = st.dictionaries(st.integers(1, 1 << 27), st.integers(1, 10**10), min_size=1, max_size=12)


def curve_of(found):
    return Curve.through([(size, [took]) for size, took in found.items()])


@thorough()
@given(points, st.floats(0, 1))
def test_between_measured_sizes_it_goes_straight(found, where):
    sizes = sorted(found)
    size = sizes[0] + where * (sizes[-1] - sizes[0])
    expected = np.interp(size, sizes, [found[one] for one in sizes])
    lowest = min(found.values()) / MAX_FACTOR_BEYOND
    rounding = 1e-9 * max(found.values())
    assert curve_of(found).at(size) == pytest.approx(max(expected, lowest), rel=1e-9, abs=rounding)


@given(points)
def test_no_answer_is_below_half_the_least_that_was_measured(found):
    curve = curve_of(found)
    for size in (curve.sizes[0] / MAX_FACTOR_BEYOND, curve.sizes[-1] * MAX_FACTOR_BEYOND):
        assert curve.at(float(size)) >= min(found.values()) / MAX_FACTOR_BEYOND


def test_beyond_its_ends_the_outermost_stretch_goes_on_to_twice_the_size():
    curve = curve_of({1000: 10_000, 2000: 20_000, 4000: 60_000})
    assert curve.at(8000) == pytest.approx(140_000)
    assert curve.at(500) == pytest.approx(5_000)


@pytest.mark.parametrize("size", [499, 8001, 0.1, 1e12])
def test_further_away_it_refuses_and_says_how_far_it_reaches(size):
    curve = curve_of({1000: 10_000, 4000: 60_000})
    assert not curve.holds(size)
    with pytest.raises(BeyondCurveError, match="1000 to 4000") as beyond:
        curve.at(size)
    assert "1000 B to 3.9 KiB" in beyond.value.in_bytes


def test_it_goes_through_medians_and_knows_the_spread():
    curve = Curve.through([(8, [10, 20, 30]), (8, [40, 50])])
    assert curve.median_ns.tolist() == [30]
    assert curve.spread.tolist() == [pytest.approx(10 / 30)]


def test_without_a_point_there_is_no_curve():
    with pytest.raises(ValueError, match="needs a point"):
        Curve.through([])


@given(st.floats(0, 1e6), st.floats(1e-3, 1e3))
def test_the_line_finds_a_latency_and_a_rate(alpha, beta):
    sizes = [1 << power for power in range(10, 28)]
    curve = Curve(np.array(sizes), alpha + beta * np.array(sizes, float), np.zeros(len(sizes)))
    line = curve.line()
    assert line.residual < 1e-6
    assert line.beta_ns == pytest.approx(beta, rel=1e-4)
    assert line.alpha_ns == pytest.approx(alpha, rel=1e-3, abs=1e-3 * beta * sizes[0] + 1e-3)


@thorough()
@given(st.lists(st.integers(1, 10**7), min_size=3, max_size=8))
def test_no_line_of_a_grid_has_smaller_errors(took):
    sizes = np.array([1 << (10 + place) for place in range(len(took))])
    curve = Curve(sizes, np.array(took, float), np.zeros(len(took)))

    def errors(alpha, beta):
        return float((((alpha + beta * sizes) / took - 1) ** 2).sum())

    line = curve.line()
    alphas = np.linspace(0, max(took), 25)
    betas = np.linspace(0, max(took) / sizes[0], 25)
    best = min(errors(alpha, beta) for alpha in alphas for beta in betas)
    assert errors(line.alpha_ns, line.beta_ns) <= best + 1e-6


def test_the_slope_is_that_of_large_sizes():
    curve = curve_of(
        {1: 1_000, 1 << 20: 1_000 + (1 << 20) * 3, 1 << 22: 1_000 + (1 << 22) * 3, 1 << 23: 1_000 + (1 << 23) * 3}
    )
    assert curve.slope() == pytest.approx(3)
    assert curve_of({1000: 5, 2000: 9}).slope() == 0
