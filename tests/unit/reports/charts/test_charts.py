"""All charts: plotly knows every property, and names are escaped."""

import msgspec
import plotly.graph_objects as go
import pytest

from tests.cases import report as case


@pytest.mark.parametrize("report", [case.report(), case.report(ranks=1), case.hostile_report()])
def test_plotly_accepts_every_chart(report):
    for chart in case.charts(report).values():
        go.Figure(data=chart.data, layout=chart.layout)


def test_texts_of_charts_contain_no_markup():
    for chart in case.charts(case.hostile_report()).values():
        text = msgspec.json.encode([chart.data, chart.layout]).decode()
        assert "<script" not in text
        assert "<img" not in text
        assert "</b>" not in text
        assert "\\u202e" not in text.lower()
