"""The type of a chart, and shared axes, margins and formatting.

The page's style sheet sets the colours of text and grid, so that one figure suits a light page, a dark page and paper.
Plotly interprets `<b>`, `<a href>` and similar tags in all texts, so every name must pass through `label`.
"""

from html import escape
from typing import Any

import msgspec

from esprof.core.text import printable
from esprof.reports.classes import TimeClass

_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN = {"l": 8, "r": 20, "t": 34, "b": 8}
ON_SECOND_AXIS = {"type": "scatter", "x": [], "y": [], "yaxis": "y2", "hoverinfo": "none"}
"""An empty trace: Plotly draws an axis only if a trace uses it."""


class Zoom(msgspec.Struct, frozen=True):
    """Rows that a choice on the page shows alone, from `first` to `last`, and the height of the chart then."""

    label: str
    first: int
    last: int
    height: int


class Figure(msgspec.Struct, frozen=True):
    """One chart: `id` of its HTML element, its alternative text, its legend, its plotly JSON, and choices of rows."""

    id: str
    alt: str
    legend: tuple[TimeClass, ...]
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    zooms: tuple[Zoom, ...] = ()


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
    """A time axis at the top, so that it is visible even if the chart is taller than the screen."""
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
    """An axis of rows, numbered from the top. Rows with equal labels stay separate."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [len(labels) - 0.5, -0.5],
        "ticks": "outside",
        "ticklen": 6,
        "tickcolor": "rgba(0,0,0,0)",
        "fixedrange": True,
        "automargin": True,
        "ticklabeloverflow": "allow",
        "showgrid": False,
        "zeroline": False,
    }


def text_column(texts: list[str]) -> dict[str, Any]:
    """A column of texts to the right of the bars, where nothing can cover them."""
    return rows_axis(texts) | {"overlaying": "y", "side": "right"}


def across(y: float) -> dict[str, Any]:
    """A dashed horizontal line."""
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"dash": "dash", "width": 1}}


def height_px(rows: int, row_px: int) -> int:
    """Height of a chart with `rows` rows, in pixels. Rows after the 24th are thinner."""
    return 64 + sum(row_px if row < 24 else 14 for row in range(max(rows, 1)))


def in_ms(us: float | None) -> float:
    return round((us or 0.0) / 1_000, 4)


def label(name: str, limit: int) -> str:
    """`name` as text that Plotly does not interpret, cut to `limit` characters."""
    return escape(printable(name, limit))
