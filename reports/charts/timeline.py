"""Timeline of the threads and streams of all ranks in one step."""

from collections import defaultdict
from typing import Any

from esprof.analyzers.summary.report import Bar, Excerpt
from esprof.reports.charts.figure import MARGIN, Figure, height_px, in_ms, label, laid_out, milliseconds_axis, rows_axis
from esprof.reports.classes import TimeClass, time_class


def draw(excerpt: Excerpt) -> Figure:
    """Lanes from top to bottom by rank, time from left to right, coloured by class."""
    lanes = sorted(dict.fromkeys((bar.rank, bar.lane) for bar in excerpt.bars), key=lambda lane: lane[0])
    rows = {lane: number for number, lane in enumerate(lanes)}
    by_class: dict[TimeClass, list[Bar]] = defaultdict(list)
    for bar in excerpt.bars:
        by_class[time_class(bar.cls)].append(bar)
    layout = laid_out(
        height=height_px(len(lanes), 24) + 24,
        margin=MARGIN | {"t": 58},
        xaxis=milliseconds_axis(in_ms(excerpt.span_us)) | {"fixedrange": False},
        yaxis=rows_axis([f"rank {rank} · {label(lane, 24)}" for rank, lane in lanes]),
        shapes=_rank_boundaries(lanes),
        dragmode="zoom",
        barmode="overlay",
    )
    data = [_bars(style, bars, rows) for style, bars in by_class.items()]
    return Figure("timeline-chart", "Timeline of every rank", tuple(by_class), data, layout)


def _bars(style: TimeClass, bars: list[Bar], rows: dict[tuple[int, str], int]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": style.label,
        "base": [in_ms(bar.start_us) for bar in bars],
        "x": [in_ms(bar.dur_us) for bar in bars],
        "y": [rows[bar.rank, bar.lane] for bar in bars],
        "width": 0.78,
        "customdata": [label(bar.name, 80) for bar in bars],
        "marker": {"color": style.colour, "line": {"width": 0}},
        "hovertemplate": f"%{{customdata}}<br>{style.label}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
    }


def _rank_boundaries(lanes: list[tuple[int, str]]) -> list[dict[str, Any]]:
    boundaries = [row + 0.5 for row in range(len(lanes) - 1) if lanes[row][0] != lanes[row + 1][0]]
    return [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"width": 1}, "layer": "below"}
        for y in boundaries
    ]
