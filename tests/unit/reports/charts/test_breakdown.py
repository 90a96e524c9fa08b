"""The bars of the breakdown."""

import pytest

from esprof.analyzers.finding import ACTIVITIES
from esprof.reports.classes import time_class
from tests.cases import report as case


def test_the_classes_of_each_rank_add_up_to_its_step():
    chart = case.charts(case.report())["breakdown-chart"]
    assert [trace["name"] for trace in chart.data] == [time_class(part).label for part in ACTIVITIES]
    for rank in range(4):
        assert sum(trace["x"][rank] for trace in chart.data) == pytest.approx(case.STEP_US / 1_000)
