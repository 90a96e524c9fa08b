"""The lanes of the timeline."""

from esprof.analyzers.summary.report import Bar
from esprof.reports.classes import CLASSES, time_class
from tests.cases import report as case


def test_lanes_are_sorted_by_rank_and_first_bar():
    chart = case.charts(case.report(ranks=2))["timeline-chart"]
    assert chart.layout["yaxis"]["ticktext"] == [
        "rank 0 · main thread",
        "rank 0 · stream 7",
        "rank 0 · stream 20 (nccl)",
        "rank 1 · main thread",
        "rank 1 · stream 7",
        "rank 1 · stream 20 (nccl)",
    ]


def test_each_bar_of_the_timeline_is_drawn_once_in_the_colour_of_its_class():
    bars = (
        Bar(rank=0, lane="main", start_us=0.0, dur_us=1_500.0, name="forward", cls="cpu"),
        Bar(rank=0, lane="main", start_us=1_500.0, dur_us=500.0, name="wait", cls="wait"),
        Bar(rank=1, lane="main", start_us=250.0, dur_us=1_250.0, name="new", cls="a class of tomorrow"),
    )
    chart = case.charts(case.report(timeline=case.excerpt(bars=bars)))["timeline-chart"]
    drawn = [
        (trace["marker"]["color"], trace["y"], trace["base"], trace["x"], trace["customdata"]) for trace in chart.data
    ]
    assert drawn == [
        (CLASSES["cpu"].colour, [0], [0.0], [1.5], ["forward"]),
        (CLASSES["wait"].colour, [0], [1.5], [0.5], ["wait"]),
        (time_class("residual").colour, [1], [0.25], [1.25], ["new"]),
    ]


def test_an_empty_timeline_has_no_chart():
    assert "timeline-chart" not in case.charts(case.report(timeline=case.excerpt(bars=())))
