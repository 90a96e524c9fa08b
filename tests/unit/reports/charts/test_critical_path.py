"""The bars of the critical path."""

import pytest

from tests.cases import report as case


def test_the_critical_path_is_longest_first_and_omits_only_zeros():
    report = case.report()
    chart = case.charts(report)["critical-path-chart"]
    spans = chart.data[0]["x"]
    assert spans == sorted(spans, reverse=True)
    assert sum(spans) == pytest.approx(report.replay.critical_path.span_us / 1_000)
