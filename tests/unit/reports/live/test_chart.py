"""Positions of the points, levels, ticks and marks of the chart."""

import json

import pytest

from esprof.reports.live.chart import SIDE, chart_of
from esprof.run.logs import JobEvent
from tests.cases.live import live_step


def test_points_span_the_width_and_slower_steps_are_higher():
    chart = chart_of([live_step(10, 1000.0), live_step(11, 500.0), live_step(14, 1000.0)], [])
    points = [tuple(map(int, point.split())) for point in chart.path[1:].split("L")]
    assert [x for x, _ in points] == [0, 250, SIDE]
    (_, slow), (_, fast), _ = points
    assert slow < fast < SIDE
    assert json.loads(chart.data) == [[10, 1000.0, 0.0], [11, 500.0, 25.0], [14, 1000.0, 100.0]]


def test_each_plan_has_a_level_at_its_median():
    steps = [live_step(step, 1000.0) for step in range(10)]
    steps += [live_step(10 + step, 500.0 + step, version=1) for step in range(11)]
    chart = chart_of(steps, [JobEvent(what="adopted", step=10, version=1)])
    assert [level.us for level in chart.levels] == [1000.0, 505.0]
    assert chart.levels[0].to_x < 10 * chart.marks[0].at_pct < chart.levels[1].from_x


def test_one_slow_step_does_not_flatten_the_others():
    steps = [live_step(step, 1000.0) for step in range(30)] + [live_step(30, 90_000.0)]
    chart = chart_of(steps, [])
    assert chart.over == (SIDE,)
    assert chart.longest_us == 90_000.0
    assert chart.levels[0].y < SIDE * 0.6


@pytest.mark.parametrize("first", [0, 7, 12_345])
@pytest.mark.parametrize("count", [2, 3, 11, 400])
@pytest.mark.parametrize("us", [0.0, 0.4, 977.0, 3e7])
def test_ticks_are_few_and_within(first, count, us):
    chart = chart_of([live_step(first + step, us) for step in range(count)], [])
    for ticks in (chart.across, chart.up):
        assert len(ticks) <= 6
        assert all(0 <= tick.at_pct <= 100 for tick in ticks)
    assert all(tick.value == int(tick.value) for tick in chart.across)
    assert len(chart.across) >= 1


def test_labels_do_not_overlap():
    steps = [live_step(step) for step in range(100)]
    marks = [JobEvent(what="adopted", step=step, version=step) for step in (50, 52, 54, 90)]
    assert [mark.has_room for mark in chart_of(steps, marks).marks] == [True, False, False, True]


def test_too_few_steps_make_no_chart():
    assert chart_of([], []) is None
    assert chart_of([live_step(0), live_step(1, twice=True)], []) is None
