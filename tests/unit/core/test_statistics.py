"""The moving-block bootstrap; that its intervals hold the truth is tested where it is used."""

import numpy as np
import pytest

from esprof.core import statistics as module
from esprof.core.statistics import bootstrap


def test_bootstrap_is_the_same_for_the_same_seed():
    values = np.random.default_rng(7).random(40)
    first, second = (
        bootstrap(40, 4, lambda at: np.median(values[at], axis=-1), 2000, np.random.default_rng(0)) for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_a_long_series_is_drawn_in_parts(monkeypatch):
    values = np.arange(50.0)
    monkeypatch.setattr(module, "_AT_ONCE", 120)
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
