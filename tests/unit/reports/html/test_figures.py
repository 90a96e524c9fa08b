"""The charts: their numbers, that plotly knows every property in them, and that no name can act in them."""

import msgspec
import plotly.graph_objects as go
import pytest

from esprof.analyzers.finding import PARTS
from esprof.analyzers.summary.report import Bar
from esprof.reports.classes import CLASSES, time_class
from esprof.reports.html import figures
from tests.cases import report as case


def charts(report):
    return {chart.id: chart for chart in figures.all_figures(report)}


@pytest.mark.parametrize("report", [case.report(), case.report(ranks=1), case.hostile_report()])
def test_plotly_accepts_every_chart(report):
    for chart in charts(report).values():
        go.Figure(data=chart.data, layout=chart.layout)


def test_the_parts_of_each_rank_stack_to_its_step():
    chart = charts(case.report())["breakdown-chart"]
    assert [trace["name"] for trace in chart.data] == [time_class(part).label for part in PARTS]
    for rank in range(4):
        assert sum(trace["x"][rank] for trace in chart.data) == pytest.approx(case.STEP_US / 1_000)


def test_steps_that_take_longer_than_the_axis_shows_lie_on_its_edge_and_tell_what_they_took():
    chart = charts(case.report())["steps-chart"]
    plain = chart.data[0]
    at = plain["x"].index(333)
    assert plain["y"][at] == chart.layout["yaxis"]["range"][1] == max(plain["y"])
    assert plain["marker"]["symbol"][at] == "triangle-up"
    assert plain["customdata"][at][0] == "4,812 ms"
    assert plain["marker"]["symbol"].count("triangle-up") == 1


def test_steps_lie_on_their_windows_passes_and_means():
    chart = charts(case.report())["steps-chart"]
    window, *passes, mean, median = chart.layout["shapes"]
    assert (window["x0"], window["x1"]) == (10.5, 14.5)
    assert [line["x0"] for line in passes] == [149.5, 299.5]
    assert (mean["y0"], median["y0"]) == (138.345, 120.3)


def test_findings_mark_their_steps():
    chart = charts(case.report())["steps-chart"]
    recurring = chart.data[3]
    assert recurring["x"] == list(range(0, 400, 20))
    assert [look.label for look in chart.legend[3:]] == [
        "ESP806: One step in 20 is slow",
        "ESP804: Step 333 stood still",
    ]
    assert recurring["marker"]["color"] == chart.legend[3].colour


def test_a_run_without_plain_steps_has_no_chart_of_them():
    assert "steps-chart" not in charts(case.report(steps=None))


def test_what_ifs_show_their_interval():
    bars = charts(case.report())["what-if-chart"].data[0]
    assert bars["x"][0] == 79.4
    assert bars["error_x"]["array"][0] == pytest.approx(81.0 - 79.4)
    assert bars["error_x"]["arrayminus"][0] == pytest.approx(79.4 - 78.1)


def test_only_answered_what_ifs_are_drawn():
    chart = charts(case.report())["what-if-chart"]
    assert chart.layout["yaxis"]["ticktext"] == ["data=0", "gpu=2x", "network=2x", "cpu=2x", "straggler=fix"]
    unanswered = tuple(scenario for scenario in case.what_ifs() if not scenario.answered)
    assert "what-if-chart" not in charts(case.report(replay=case.replay(scenarios=unanswered)))


def test_two_scenarios_of_one_name_keep_a_bar_each():
    twice = case.what_ifs()[:1] * 2
    chart = charts(case.report(replay=case.replay(scenarios=twice)))["what-if-chart"]
    assert chart.data[0]["y"] == [0, 1]


def test_the_critical_path_is_longest_first_and_leaves_out_nothing_but_zeros():
    report = case.report()
    chart = charts(report)["critical-path-chart"]
    spans = chart.data[0]["x"]
    assert spans == sorted(spans, reverse=True)
    assert sum(spans) == pytest.approx(report.replay.critical_path.span_us / 1_000)


def test_lanes_stand_by_rank_in_the_order_of_their_first_bar():
    chart = charts(case.report(ranks=2))["timeline-chart"]
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
    chart = charts(case.report(timeline=case.excerpt(bars=bars)))["timeline-chart"]
    drawn = [
        (trace["marker"]["color"], trace["y"], trace["base"], trace["x"], trace["customdata"]) for trace in chart.data
    ]
    assert drawn == [
        (CLASSES["cpu"].colour, [0], [0.0], [1.5], ["forward"]),
        (CLASSES["wait"].colour, [0], [1.5], [0.5], ["wait"]),
        (time_class("residual").colour, [1], [0.25], [1.25], ["new"]),
    ]


def test_no_text_of_a_chart_holds_markup():
    for chart in charts(case.hostile_report()).values():
        text = msgspec.json.encode([chart.data, chart.layout]).decode()
        assert "<script" not in text
        assert "<img" not in text
        assert "</b>" not in text
        assert "\\u202e" not in text.lower()


def test_an_empty_timeline_is_no_chart():
    assert "timeline-chart" not in charts(case.report(timeline=case.excerpt(bars=())))


def test_a_tree_of_stacks_hangs_together_and_sums_up():
    for tree in charts(case.report())["flame-chart"].data:
        values = dict(zip(tree["ids"], tree["values"], strict=True))
        assert tree["parents"][0] == ""
        for place, parent in list(zip(tree["ids"], tree["parents"], strict=True))[1:]:
            assert int(parent) < int(place)
        for place, value in values.items():
            callees = [
                values[child] for child, parent in zip(tree["ids"], tree["parents"], strict=True) if parent == place
            ]
            assert sum(callees) <= value + 1e-6


def test_a_function_tells_where_it_is_and_how_long_it_took():
    chart = charts(case.report())["flame-chart"]
    (first, *others) = chart.data
    assert [first["visible"], *(tree["visible"] for tree in others)] == [True, False, False, False, False]
    assert first["labels"][:2] == ["training thread · 2,400 ms", "main"]
    assert first["customdata"][1] == ["train.py, at 88 (60.0 %), 91 (30.0 %)", 90.0]
    assert first["customdata"][-1] == ["", 50.0]
    assert "on a CPU" in first["hovertemplate"]
    unknown = msgspec.structs.replace(case.flame().trees[0], cpu_us=None)
    told = charts(case.report(flame=msgspec.structs.replace(case.flame(), trees=(unknown,))))["flame-chart"]
    assert "on a CPU" not in told.data[0]["hovertemplate"]


def test_deep_stacks_have_lower_levels():
    deep = tuple((f"f{n}", "a.py", "job", n - 1, 1.0, 1.0, ((1, 100.0),)) for n in range(150))
    chart = charts(case.report(flame=case.flame(1, deep)))["flame-chart"]
    assert chart.layout["height"] == 760
    assert len(chart.data) == 1
