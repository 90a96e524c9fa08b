"""What each thread and stream of every rank did in one step."""

from collections import defaultdict
from typing import Any

from esprof.analyzers.summary.report import Bar, Excerpt
from esprof.reports.charts.figure import MARGIN, Figure, height_px, in_ms, label, laid_out, milliseconds_axis, rows_axis
from esprof.reports.classes import TimeClass, time_class


def draw(excerpt: Excerpt) -> Figure:
    """Lanes from top to bottom by rank, time from left to right, coloured by class."""
    lanes = sorted(dict.fromkeys((bar.rank, bar.lane) for bar in excerpt.bars), key=lambda lane: lane[0])
    place = {lane: number for number, lane in enumerate(lanes)}
    by_class: dict[TimeClass, list[Bar]] = defaultdict(list)
    for bar in excerpt.bars:
        by_class[time_class(bar.cls)].append(bar)
    layout = laid_out(
        height=height_px(len(lanes), 24) + 24,
        margin=MARGIN | {"t": 58},
        xaxis=milliseconds_axis(in_ms(excerpt.span_us)) | {"fixedrange": False},
        yaxis=rows_axis([f"rank {rank} · {label(lane, 24)}" for rank, lane in lanes]),
        shapes=_between_ranks(lanes),
        dragmode="zoom",
        barmode="overlay",
    )
    data = [_stretches(look, bars, place) for look, bars in by_class.items()]
    return Figure("timeline-chart", "Timeline of every rank", tuple(by_class), data, layout)


def _stretches(look: TimeClass, bars: list[Bar], place: dict[tuple[int, str], int]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": look.label,
        "base": [in_ms(bar.start_us) for bar in bars],
        "x": [in_ms(bar.dur_us) for bar in bars],
        "y": [place[bar.rank, bar.lane] for bar in bars],
        "width": 0.78,
        "customdata": [label(bar.name, 80) for bar in bars],
        "marker": {"color": look.colour, "line": {"width": 0}},
        "hovertemplate": f"%{{customdata}}<br>{look.label}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
    }


def _between_ranks(lanes: list[tuple[int, str]]) -> list[dict[str, Any]]:
    borders = [place + 0.5 for place in range(len(lanes) - 1) if lanes[place][0] != lanes[place + 1][0]]
    return [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"width": 1}, "layer": "below"}
        for y in borders
    ]
