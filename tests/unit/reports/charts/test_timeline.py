"""The lanes of the timeline."""

from esprof.analyzers.summary.timeline_excerpt import Bar
from esprof.reports.classes import CLASSES, time_class
from tests.cases import report as case


def test_lanes_are_sorted_by_rank_and_first_bar():
    chart = case.charts(case.report(ranks=2))["timeline-chart"]
    assert chart.layout["yaxis"]["ticktext"] == [
        "0 · waits",
        "0 · main thread",
        "0 · stream 7",
        "0 · stream 20 (nccl)",
        "1 · main thread",
        "1 · stream 7",
        "1 · stream 20 (nccl)",
    ]


def test_each_bar_of_the_timeline_is_drawn_once_in_the_colour_of_its_class():
    bars = (
        Bar(rank=0, lane="main", start_us=0.0, dur_us=1_500.0, name="forward", cls="cpu"),
        Bar(rank=0, lane="main", start_us=1_500.0, dur_us=500.0, name="wait", cls="wait", cause="a & b"),
        Bar(rank=1, lane="main", start_us=250.0, dur_us=1_250.0, name="new", cls="a class of tomorrow"),
    )
    chart = case.charts(case.report(timeline=case.excerpt(bars=bars)))["timeline-chart"]
    drawn = [
        (trace["marker"]["color"], trace["y"], trace["base"], trace["x"], trace["customdata"]) for trace in chart.data
    ]
    assert drawn == [
        (CLASSES["cpu"].colour, [0], [0.0], [1.5], [["forward", "1.50 ms", ""]]),
        (CLASSES["wait"].colour, [0], [1.5], [0.5], [["wait", "0.50 ms", "<br>a &amp; b"]]),
        (time_class("residual").colour, [1], [0.25], [1.25], [["new", "1.25 ms", ""]]),
    ]


def test_an_empty_timeline_has_no_chart():
    assert "timeline-chart" not in case.charts(case.report(timeline=case.excerpt(bars=())))


def test_the_path_is_drawn_through_the_lanes_of_its_pieces():
    report = case.report()
    chart = case.charts(report)["timeline-chart"]
    rows = {text: row for row, text in enumerate(chart.layout["yaxis"]["ticktext"])}
    edge, path = chart.data[-2:]
    assert edge["x"] == path["x"] == [0.0, 40.0, 40.0, 104.5, 104.5, 110.5]
    assert [*dict.fromkeys(path["y"])] == [rows["1 · main thread"], rows["0 · stream 20 (nccl)"]]
    assert path["customdata"][0] == ["DataLoader.next", "input stall", "40.0 ms", 1]


def test_an_arrow_leads_from_the_late_rank_to_each_wait():
    chart = case.charts(case.report())["timeline-chart"]
    rows = {text: row for row, text in enumerate(chart.layout["yaxis"]["ticktext"])}
    lines, heads = chart.data[-4:-2]
    assert lines["x"] == [104.5, 104.5, None] * 3
    assert lines["y"][::3] == [rows["1 · stream 20 (nccl)"]] * 3
    assert heads["y"] == [rows[f"{rank} · waits"] for rank in (0, 2, 3)]
    assert heads["marker"]["symbol"] == ["triangle-up", "triangle-down", "triangle-down"]
    assert heads["customdata"][0] == ["all_reduce", 1, 0, "42.5 ms"]


def test_a_choice_shows_the_lanes_of_one_rank():
    chart = case.charts(case.report(ranks=2))["timeline-chart"]
    assert [(zoom.label, zoom.first, zoom.last) for zoom in chart.zooms] == [
        ("all ranks", 0, 6),
        ("rank 0", 0, 3),
        ("rank 1", 4, 6),
    ]
    assert case.charts(case.report(ranks=1))["timeline-chart"].zooms == ()
