"""Forecasts of losses of known form."""

import numpy as np
import pytest

from esprof.elastic.rates.forecast import MIN_STEPS, forecast


def curve(time_constant: float, steps: int, noise: float = 0.0, seed: int = 0) -> list[float]:
    x = np.arange(1, steps + 1)
    return (2 * np.exp(-x / time_constant) + 1 + noise * np.random.default_rng(seed).normal(size=steps)).tolist()


def test_an_exponential_without_noise_is_continued():
    found = forecast(curve(30, 100), 1000)
    assert found is not None
    assert found.loss == pytest.approx(1, abs=0.01)
    assert found.low <= found.loss <= found.high


def test_the_interval_of_a_fast_decay_holds_its_floor():
    held = 0
    for seed in range(20):
        found = forecast(curve(30, 100, 0.02, seed), 1000)
        assert found is not None
        held += found.low - 0.01 <= 1 <= found.high + 0.01
        assert found.high - found.low < 0.1
    assert held >= 18


def test_the_interval_of_a_slow_decay_is_wide():
    fast, slow = (forecast(curve(constant, 100, 0.02), 1000) for constant in (30, 300))
    assert fast is not None
    assert slow is not None
    assert slow.high - slow.low > 5 * (fast.high - fast.low)


@pytest.mark.parametrize("losses", [[1.0] * (MIN_STEPS - 1), [1.0] * MIN_STEPS + [float("nan")], []])
def test_few_steps_and_infinite_losses_have_no_forecast(losses):
    assert forecast(losses, 100) is None
