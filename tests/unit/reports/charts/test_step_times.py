"""The chart of all steps."""

from tests.cases import report as case


def test_steps_above_the_axis_range_lie_on_its_edge_with_their_duration():
    chart = case.charts(case.report())["steps-chart"]
    plain = chart.data[0]
    at = plain["x"].index(333)
    assert plain["y"][at] == chart.layout["yaxis"]["range"][1] == max(plain["y"])
    assert plain["marker"]["symbol"][at] == "triangle-up"
    assert plain["customdata"][at][0] == "4,812 ms"
    assert plain["marker"]["symbol"].count("triangle-up") == 1


def test_windows_passes_mean_and_median_are_drawn():
    chart = case.charts(case.report())["steps-chart"]
    window, *passes, mean, median = chart.layout["shapes"]
    assert (window["x0"], window["x1"]) == (10.5, 14.5)
    assert [line["x0"] for line in passes] == [149.5, 299.5]
    assert (mean["y0"], median["y0"]) == (138.345, 120.3)


def test_findings_mark_their_steps():
    chart = case.charts(case.report())["steps-chart"]
    recurring = chart.data[3]
    assert recurring["x"] == list(range(0, 400, 20))
    assert [style.label for style in chart.legend[3:]] == [
        "ESP806: One step in 20 is slow",
        "ESP804: Step 333 stood still",
    ]
    assert recurring["marker"]["color"] == chart.legend[3].colour


def test_a_run_without_plain_steps_has_no_steps_chart():
    assert "steps-chart" not in case.charts(case.report(steps=None))
