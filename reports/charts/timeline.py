"""Timeline of the threads and streams of the ranks in one step, with the critical path and the waits for late ranks."""

from collections import defaultdict
from itertools import groupby
from typing import Any

from esprof.analyzers.summary.timeline_excerpt import WAITS, Arrow, Bar, Excerpt
from esprof.reports.charts.figure import (
    MARGIN,
    Figure,
    Zoom,
    height_px,
    in_ms,
    label,
    laid_out,
    milliseconds_axis,
    rows_axis,
)
from esprof.reports.classes import CRITICAL_PATH, RELEASE, TimeClass, time_class
from esprof.reports.units import duration

_ROW_PX = 24
_Rows = dict[tuple[int, str], int]


def draw(excerpt: Excerpt) -> Figure:
    """Lanes from top to bottom by rank, time from left to right, coloured by class; over them the critical path, and arrows
    from the last rank to arrive at a collective to each rank whose wait it ends. A choice shows the lanes of one rank.
    """
    lanes = sorted(dict.fromkeys((bar.rank, bar.lane) for bar in excerpt.bars), key=lambda lane: lane[0])
    rows = {lane: number for number, lane in enumerate(lanes)}
    by_class: dict[TimeClass, list[Bar]] = defaultdict(list)
    for bar in excerpt.bars:
        by_class[time_class(bar.cls)].append(bar)
    layout = laid_out(
        height=_height_px(len(lanes)),
        margin=MARGIN | {"t": 58},
        xaxis=milliseconds_axis(in_ms(excerpt.span_us)) | {"fixedrange": False},
        yaxis=rows_axis([f"{rank} · {label(lane, 18)}" for rank, lane in lanes]),
        shapes=_rank_boundaries(lanes),
        dragmode="zoom",
        barmode="overlay",
        hovermode="closest",
    )
    path = [piece for piece in excerpt.path if (piece.rank, piece.lane) in rows]
    arrows = [one for one in excerpt.arrows if (one.rank, WAITS) in rows and (one.late, one.late_lane) in rows]
    data = [_bars(style, bars, rows) for style, bars in by_class.items()]
    data += _releases(arrows, rows) if arrows else []
    data += _path(path, rows) if path else []
    legend = (*by_class, *([CRITICAL_PATH] if path else []), *([RELEASE] if arrows else []))
    return Figure("timeline-chart", "Timeline of every rank", legend, data, layout, _zooms(lanes))


def _height_px(lanes: int) -> int:
    return height_px(lanes, _ROW_PX) + 24


def _bars(style: TimeClass, bars: list[Bar], rows: _Rows) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": style.label,
        "base": [in_ms(bar.start_us) for bar in bars],
        "x": [in_ms(bar.dur_us) for bar in bars],
        "y": [rows[bar.rank, bar.lane] for bar in bars],
        "width": 0.78,
        # Plotly's %{x} is where a bar ends, not how long it is.
        "customdata": [[label(bar.name, 80), duration(bar.dur_us), _cause(bar)] for bar in bars],
        "marker": {"color": style.colour, "line": {"width": 0}},
        "hovertemplate": "%{customdata[0]}<br>"
        f"{style.label}: %{{customdata[1]}}, from %{{base:.3f}} ms%{{customdata[2]}}<extra></extra>",
    }


def _cause(bar: Bar) -> str:
    return f"<br>{label(bar.cause, 120)}" if bar.cause else ""


def _path(path: list[Bar], rows: _Rows) -> list[dict[str, Any]]:
    """A line through the pieces, with a light edge that sets it apart from dark bars and from a dark page."""
    ends = [(at, piece) for piece in path for at in (piece.start_us, piece.start_us + piece.dur_us)]
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [in_ms(at) for at, _ in ends],
        "y": [rows[piece.rank, piece.lane] for _, piece in ends],
        "showlegend": False,
    }
    return [
        line | {"line": {"color": "#ffffff", "width": 5}, "hoverinfo": "skip"},
        line
        | {
            "name": CRITICAL_PATH.label,
            "line": {"color": CRITICAL_PATH.colour, "width": 2},
            "customdata": [
                [label(piece.name, 80), time_class(piece.cls).label, duration(piece.dur_us), piece.rank]
                for _, piece in ends
            ],
            "hovertemplate": "critical path: %{customdata[0]}, rank %{customdata[3]}<br>"
            "%{customdata[1]}: %{customdata[2]}<extra></extra>",
        },
    ]


def _releases(arrows: list[Arrow], rows: _Rows) -> list[dict[str, Any]]:
    """A dotted line from the row of the late rank to that of the waiting one, and its head."""
    x: list[float | None] = []
    y: list[int | None] = []
    heads = []
    for one in arrows:
        begin, end = rows[one.late, one.late_lane], rows[one.rank, WAITS]
        x += [in_ms(one.at_us), in_ms(one.at_us), None]
        y += [begin, end, None]
        heads.append((in_ms(one.at_us), end, "triangle-up" if end < begin else "triangle-down", one))
    line = {"color": RELEASE.colour, "width": 1, "dash": "dot"}
    return [
        {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip", "showlegend": False},
        {
            "type": "scatter",
            "mode": "markers",
            "name": RELEASE.label,
            "x": [head[0] for head in heads],
            "y": [head[1] for head in heads],
            "marker": {"symbol": [head[2] for head in heads], "size": 8, "color": RELEASE.colour},
            "customdata": [[label(one.name, 60), one.late, one.rank, duration(one.waited_us)] for *_, one in heads],
            "hovertemplate": "%{customdata[0]}: rank %{customdata[2]} waited %{customdata[3]}"
            "<br>for rank %{customdata[1]}, which arrived last<extra></extra>",
            "showlegend": False,
        },
    ]


def _zooms(lanes: list[tuple[int, str]]) -> tuple[Zoom, ...]:
    """All lanes, and those of each rank; none for a single rank."""
    of_ranks = [(rank, len(list(mine))) for rank, mine in groupby(rank for rank, _ in lanes)]
    if len(of_ranks) < 2:
        return ()
    found, first = [Zoom("all ranks", 0, len(lanes) - 1, _height_px(len(lanes)))], 0
    for rank, count in of_ranks:
        found.append(Zoom(f"rank {rank}", first, first + count - 1, _height_px(count)))
        first += count
    return tuple(found)


def _rank_boundaries(lanes: list[tuple[int, str]]) -> list[dict[str, Any]]:
    boundaries = [row + 0.5 for row in range(len(lanes) - 1) if lanes[row][0] != lanes[row + 1][0]]
    return [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"width": 1}, "layer": "below"}
        for y in boundaries
    ]
