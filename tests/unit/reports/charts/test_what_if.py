"""The bars of the what-ifs."""

import pytest

from tests.cases import report as case


def test_what_ifs_show_their_interval():
    bars = case.charts(case.report())["what-if-chart"].data[0]
    assert bars["x"][0] == 79.4
    assert bars["error_x"]["array"][0] == pytest.approx(81.0 - 79.4)
    assert bars["error_x"]["arrayminus"][0] == pytest.approx(79.4 - 78.1)


def test_only_answered_what_ifs_are_drawn():
    chart = case.charts(case.report())["what-if-chart"]
    assert chart.layout["yaxis"]["ticktext"] == ["data=0", "gpu=2x", "network=2x", "cpu=2x", "straggler=fix"]
    unanswered = tuple(scenario for scenario in case.what_ifs() if not scenario.answered)
    assert "what-if-chart" not in case.charts(case.report(replay=case.replay(scenarios=unanswered)))


def test_two_scenarios_of_the_same_name_have_a_bar_each():
    twice = case.what_ifs()[:1] * 2
    chart = case.charts(case.report(replay=case.replay(scenarios=twice)))["what-if-chart"]
    assert chart.data[0]["y"] == [0, 1]
