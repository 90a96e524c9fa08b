"""Duration of each step of the run."""

from html import escape
from textwrap import wrap
from typing import Any

from esprof.analyzers.steps.step_times import Series, StepTimes
from esprof.core.text import printable
from esprof.reports.charts.figure import MARGIN, Figure, across, in_ms, laid_out
from esprof.reports.classes import TimeClass
from esprof.reports.units import duration
from esprof.run.run import Window

_MAX_TITLE_CHARACTERS = 4_000
"""Maximum length of a finding's title, as elsewhere on the page."""
_STEP_ROLES = {
    "plain": TimeClass("without the profiler", "#2b7bba", "#ffffff", "steps that ran without the profiler"),
    "timed": TimeClass("in a window", "#1b9e77", "#14181f", "steps that the profiler recorded"),
    "stack": TimeClass("in a window with stacks", "#8a5a2f", "#ffffff", "steps recorded with Python stacks"),
    "beside": TimeClass(
        "first step, warm-up, export",
        "#8d99a6",
        "#14181f",
        "the job's first step, and steps during the profiler's warm-up and export",
    ),
}
_FINDING_COLOURS = ("#d55e2b", "#c06a9f", "#f2c230", "#5b3f9b", "#63bdea", "#1d3557")
"""Colours of the findings that name steps, in order."""


def draw(times: StepTimes) -> Figure:
    """A point for each step: its duration, coloured by its role; a ring marks steps that a finding names."""
    top = in_ms(times.top_us)
    styles = {role: _STEP_ROLES[role] for role in times.series}
    data = [
        _points(style.label, times.series[role], top, {"color": style.colour, "size": 4, "line": {"width": 0}})
        for role, style in styles.items()
    ]
    marked = []
    for mark, colour in zip(times.marks, _FINDING_COLOURS, strict=False):
        named = printable(f"{mark.id}: {mark.title}", _MAX_TITLE_CHARACTERS)
        marked.append(TimeClass(named, colour, colour, "steps that this finding names"))
        ring = {"color": colour, "size": 9, "line": {"width": 1.5, "color": colour}}
        data.append(_points("<br>".join(map(escape, wrap(named, 80))), mark.steps, top, ring, "-open"))
    mean, median = in_ms(times.mean_us), in_ms(times.median_us)
    layout = laid_out(
        height=320,
        margin=MARGIN | {"b": 40, "r": 118},
        xaxis={
            "title": {"text": "step", "standoff": 6},
            "zeroline": False,
            "fixedrange": False,
            "separatethousands": True,
        },
        yaxis={
            "ticksuffix": " ms",
            "range": [0, top],
            "automargin": True,
            "fixedrange": True,
            "zeroline": False,
            "separatethousands": True,
        },
        shapes=[
            *(_band(window) for window in times.windows),
            *(_upright(step - 0.5) for step in times.passes),
            across(mean) | {"line": {"width": 1.2}},
            across(median) | {"line": {"width": 1.2, "dash": "dash"}},
        ],
        annotations=[
            _at_the_end(mean, f"mean {duration(times.mean_us)}", is_upper=mean >= median),
            _at_the_end(median, f"median {duration(times.median_us)}", is_upper=mean < median),
        ],
        dragmode="zoom",
        hovermode="closest",
    )
    legend = (*styles.values(), *marked)
    return Figure("steps-chart", "Duration of each step of the run", legend, data, layout)


def _points(name: str, steps: Series, top: float, marker: dict[str, Any], suffix: str = "") -> dict[str, Any]:
    """Points of steps. Those above the axis range lie on its upper edge, as triangles."""
    took = [in_ms(us) for us in steps.us]
    is_above = [ms > top for ms in took]
    if any(is_above):
        symbols = ["triangle-up" if above else "circle" for above in is_above]
        sizes = [max(8, marker["size"]) if above else marker["size"] for above in is_above]
        marker = marker | {"symbol": [symbol + suffix for symbol in symbols], "size": sizes}
    else:
        marker = marker | {"symbol": f"circle{suffix}"}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(steps.step),
        "y": [min(ms, top) for ms in took],
        "marker": marker,
        "cliponaxis": False,
        "customdata": [[duration(us), f"{at:,.1f} s"] for us, at in zip(steps.us, steps.at_s, strict=True)],
        "meta": [name],
        "hovertemplate": "step %{x}: %{customdata[0]}, %{customdata[1]} after the start<br>%{meta[0]}<extra></extra>",
    }


def _band(window: Window) -> dict[str, Any]:
    return {
        "type": "rect",
        "x0": window.first - 0.5,
        "x1": window.last + 0.5,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": _STEP_ROLES["stack" if window.stacks else "timed"].colour,
        "opacity": 0.16,
        "line": {"width": 0},
        "layer": "below",
    }


def _upright(x: float) -> dict[str, Any]:
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "dash": "dot"}}


def _at_the_end(y: float, text: str, is_upper: bool) -> dict[str, Any]:
    """An annotation to the right of the line at `y`, above or below it, so that two labels do not overlap."""
    anchor = "bottom" if is_upper else "top"
    return {"x": 1, "xref": "paper", "xanchor": "left", "y": y, "yanchor": anchor, "text": text, "showarrow": False}
