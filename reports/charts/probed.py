"""Charts of the benchmarks of `esprof probe`: time by size on logarithmic axes, with the fitted line."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from esprof.analyzers.views.probed import CurveSummary, Probed
from esprof.reports.charts.figure import MARGIN, Figure, label, laid_out
from esprof.reports.terminal.probed import slowest_of_alike, title
from esprof.reports.units import duration, interval, size

_CHARTS = (
    ("links-chart", "Time of collectives by size", ("collective",)),
    ("congestion-chart", "Time of collectives by TCP congestion control", ("congestion",)),
    ("codecs-chart", "Time of codecs by bytes of the gradient", ("encode", "decode")),
    ("exchanges-chart", "Time of compressed exchanges by bytes of the gradient", ("exchange", "shards")),
    ("storage-chart", "Time of memory and storage operations by size", ("copy", "read", "load", "save")),
)
_COLOURS = ("#2b7bba", "#d55e2b", "#1b9e77", "#f2c230", "#c06a9f", "#63bdea", "#8a5a2f", "#bfc6ce")
"""The colours of time classes that are visible on a light and on a dark page."""
_TICKS = [1 << power for power in range(0, 40, 5)]
_TIMES_US = [10.0**power for power in range(-1, 8)]


def draw_all(probed: Probed | None) -> Iterator[Figure]:
    """A chart for each group of curves with several sizes; none if nothing was measured."""
    for chart_id, alt, kinds in _CHARTS:
        found = [curve for curve in probed.curves if curve.kind in kinds and len(curve.points) > 1] if probed else []
        if found:
            yield _chart(chart_id, alt, [curve for curve, _ in slowest_of_alike(found)])


def _chart(chart_id: str, alt: str, curves: Sequence[CurveSummary]) -> Figure:
    data = [
        trace(curve, colour)
        for curve, colour in zip(curves, cycle(_COLOURS), strict=False)
        for trace in (_measured, _line)
    ]
    layout = laid_out(
        height=340,
        margin=MARGIN | {"t": 12, "b": 36, "r": 150},
        xaxis=_axis(_TICKS, [size(tick) for tick in _TICKS]),
        yaxis=_axis(_TIMES_US, [duration(tick) for tick in _TIMES_US]),
        showlegend=True,
        legend={"x": 1.02, "y": 0.9},
        dragmode="zoom",
    )
    return Figure(chart_id, alt, (), data, layout)


def _measured(curve: CurveSummary, colour: str) -> dict[str, Any]:
    name = label(title(curve), 40)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "legendgroup": name,
        "x": [point.size for point in curve.points],
        "y": [point.median_us for point in curve.points],
        "error_y": {
            "type": "data",
            "array": [point.high_us - point.median_us for point in curve.points],
            "arrayminus": [point.median_us - point.low_us for point in curve.points],
            "thickness": 1,
            "width": 2,
        },
        "line": {"color": colour, "width": 1.5},
        "marker": {"color": colour, "size": 4},
        "customdata": [
            f"{size(point.size)}: {duration(point.median_us)} ({interval(point.low_us, point.high_us)})"
            for point in curve.points
        ],
        "hovertemplate": f"{name}, %{{customdata}}<extra></extra>",
    }


def _line(curve: CurveSummary, colour: str) -> dict[str, Any]:
    """The fitted α–β line at the same sizes."""
    name = label(title(curve), 40)
    per_byte = curve.line.us_per_mib / (1 << 20)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, line",
        "legendgroup": name,
        "showlegend": False,
        "x": [point.size for point in curve.points],
        "y": [max(1e-3, curve.line.alpha_us + per_byte * point.size) for point in curve.points],
        "line": {"color": colour, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _axis(ticks: Sequence[float], texts: list[str]) -> dict[str, Any]:
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": list(ticks),
        "ticktext": texts,
        "automargin": True,
        "fixedrange": False,
        "zeroline": False,
    }
