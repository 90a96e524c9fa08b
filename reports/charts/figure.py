"""What a chart is, and what the charts share: axes, margins, numbers and names.

Text colours, grids and rules are set by the page's style sheet, so that one figure serves a light page, a dark one and
paper. Plotly reads `<b>`, `<a href>` and kin in any text that it draws: every name passes `label` first.
"""

from html import escape
from typing import Any

import msgspec

from esprof.core.text import printable
from esprof.reports.classes import TimeClass

_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN = {"l": 8, "r": 20, "t": 34, "b": 8}
ON_SECOND_AXIS = {"type": "scatter", "x": [], "y": [], "yaxis": "y2", "hoverinfo": "none"}
"""Plotly draws an axis only where a trace uses it."""


class Figure(msgspec.Struct, frozen=True):
    """One chart: `id` of the element it is drawn in, what it shows in words, its classes of time, its plotly JSON."""

    id: str
    alt: str
    legend: tuple[TimeClass, ...]
    data: list[dict[str, Any]]
    layout: dict[str, Any]


def laid_out(height: int, **more: Any) -> dict[str, Any]:
    layout = {
        "height": height,
        "margin": MARGIN,
        "font": {"family": _FONT, "size": 12, "color": "#7a8591"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "bargap": 0.3,
        "hoverlabel": {"align": "left", "font": {"family": _FONT, "size": 12}},
    }
    return layout | more


def milliseconds_axis(end: float) -> dict[str, Any]:
    """Time above the bars, where a chart that is taller than the screen still shows it."""
    return {
        "side": "top",
        "range": [0, end or 1],
        "ticksuffix": " ms",
        "showticksuffix": "last",
        "separatethousands": True,
        "tickangle": 0,
        "zeroline": False,
        "fixedrange": True,
    }


def rows_axis(labels: list[str]) -> dict[str, Any]:
    """An axis of numbered rows from the top: two rows of one name stay two."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [len(labels) - 0.5, -0.5],
        "ticks": "outside",
        "ticklen": 6,
        "tickcolor": "rgba(0,0,0,0)",
        "fixedrange": True,
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }


def column_beside(texts: list[str]) -> dict[str, Any]:
    """The figures in words, in a column of their own to the right: no bar, interval or rule can cover them."""
    return rows_axis(texts) | {"overlaying": "y", "side": "right"}


def across(y: float) -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"dash": "dash", "width": 1}}


def height_px(rows: int, row_px: int) -> int:
    """Of a chart in pixels: rows get thinner when there are many."""
    return 64 + sum(row_px if row < 24 else 14 for row in range(max(rows, 1)))


def in_ms(us: float | None) -> float:
    return round((us or 0.0) / 1_000, 4)


def label(name: str, limit: int) -> str:
    return escape(printable(name, limit))
