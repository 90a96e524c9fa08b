"""Where the mean step of each rank goes."""

from typing import Any

from esprof.analyzers.finding import PARTS, Diagnosis
from esprof.reports.charts.figure import Figure, height_px, in_ms, laid_out, milliseconds_axis, rows_axis
from esprof.reports.classes import TimeClass, time_class
from esprof.reports.units import duration

_STACKED = {"barmode": "stack", "uniformtext": {"minsize": 10, "mode": "hide"}}


def draw(diagnosis: Diagnosis) -> Figure:
    """A stacked bar a rank: where its mean step goes."""
    ranks = diagnosis.breakdown
    names = [f"rank {rank.rank}" for rank in ranks]
    data = [_stack(time_class(part), names, [getattr(rank, part) for rank in ranks]) for part in PARTS]
    longest = max((rank.step_us for rank in ranks), default=0.0)
    layout = laid_out(height=height_px(len(ranks), 36), xaxis=milliseconds_axis(in_ms(longest)), yaxis=rows_axis(names))
    legend = tuple(time_class(part) for part in PARTS)
    return Figure("breakdown-chart", "Where the mean step of each rank goes", legend, data, layout | _STACKED)


def _stack(look: TimeClass, names: list[str], parts_us: list[float]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": look.label,
        "x": [in_ms(us) for us in parts_us],
        "y": list(range(len(names))),
        "marker": {"color": look.colour},
        "text": [duration(us) for us in parts_us],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": look.ink},
        "customdata": names,
        "hovertemplate": f"%{{customdata}} · {look.label}: %{{text}}<extra></extra>",
    }
