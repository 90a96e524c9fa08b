"""How the soak draws its events, and how it tells growth from noise."""

import random

import numpy as np
import pytest

from benchmarks.soak.events import ENDS_RANKS, schedule
from benchmarks.soak.growth import Sample, growth

LEVELS = {11: 100.0, 12: 300.0, 13: 200.0}
"""Of three processes."""


def samples(per_1000, noise=1.0, seed=0):
    """Of processes with a level of their own, one after the other, each with a steep begin."""
    draw = np.random.default_rng(seed)
    made = []
    for number, (pid, level) in enumerate(LEVELS.items()):
        for step in range(5_000 * number, 5_000 * (number + 1), 50):
            warm = min(0.0, 0.1 * (step - 5_000 * number - 400))
            value = level + warm + per_1000 * (step - 5_000 * number) / 1000 + draw.normal(0, noise)
            made.append(Sample("memory", pid, step, value))
    return made


def test_growth_is_found_whatever_the_level_of_each_process():
    found = growth(samples(0.5))
    assert found.low < 0.5 < found.high
    assert found.per_1000 == pytest.approx(0.5, abs=0.1)
    assert not found.is_flat


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_flat(seed):
    found = growth(samples(0.0, seed=seed))
    assert found.is_flat
    assert found.level == pytest.approx(200, abs=5)


def test_what_never_changes_is_flat():
    found = growth([Sample("threads", 1, step, 5.0) for step in range(0, 2_000, 50)])
    assert (found.per_1000, found.low, found.high, found.level, found.is_flat) == (0, 0, 0, 5, True)


def test_short_lives_have_no_growth():
    assert growth([Sample("memory", 1, step, 1.0) for step in range(0, 700, 50)]) is None


def test_events_come_in_order_and_the_end_is_without_those_that_end_ranks():
    drawn = schedule(random.Random(1), 10_000, {"kill": 50, "plan": 50})
    assert drawn == sorted(drawn)
    assert len(drawn) == 101
    assert max((step, name) for step, name in drawn if name in ENDS_RANKS) == (6_001, "leave")
    assert max(step for step, _ in drawn) > 8_000
    assert drawn == schedule(random.Random(1), 10_000, {"kill": 50, "plan": 50})
