"""Lower ends of measured prices."""

import numpy as np
import pytest

from esprof.analyzers.price import least_of_events
from esprof.core.statistics import share_interval


def test_of_few_events_only_their_number_is_random():
    values = np.zeros(44)
    values[[11, 22, 35]] = 110.0, 120.0, 130.0
    assert least_of_events(values) == pytest.approx(110 * share_interval(3, 44)[0])
    assert 0 < least_of_events(values) < values.mean() / 4


def test_without_events_nothing_is_certain():
    assert least_of_events(np.zeros(44)) == 0
