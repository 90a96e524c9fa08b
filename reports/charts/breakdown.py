"""Mean step of each rank, by class of time."""

from collections.abc import Collection
from typing import Any

from esprof.analyzers.finding import ACTIVITIES, Diagnosis
from esprof.core.types import Rank
from esprof.reports.charts.figure import Figure, height_px, in_ms, laid_out, milliseconds_axis, rows_axis
from esprof.reports.classes import TimeClass, time_class
from esprof.reports.units import duration

_STACKED = {"barmode": "stack", "uniformtext": {"minsize": 10, "mode": "hide"}}


def draw(diagnosis: Diagnosis, charted: Collection[Rank] | None = None) -> Figure:
    """A stacked bar for each of the ranks `charted`, or for all: its mean step, by class of time."""
    ranks = [rank for rank in diagnosis.breakdown if charted is None or rank.rank in charted]
    names = [f"rank {rank.rank}" for rank in ranks]
    data = [_stack(time_class(part), names, [getattr(rank, part) for rank in ranks]) for part in ACTIVITIES]
    longest = max((rank.step_us for rank in ranks), default=0.0)
    layout = laid_out(height=height_px(len(ranks), 36), xaxis=milliseconds_axis(in_ms(longest)), yaxis=rows_axis(names))
    legend = tuple(time_class(part) for part in ACTIVITIES)
    return Figure("breakdown-chart", "Mean step of each rank by class of time", legend, data, layout | _STACKED)


def _stack(style: TimeClass, names: list[str], durations_us: list[float]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": style.label,
        "x": [in_ms(us) for us in durations_us],
        "y": list(range(len(names))),
        "marker": {"color": style.colour},
        "text": [duration(us) for us in durations_us],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": style.ink},
        "customdata": names,
        "hovertemplate": f"%{{customdata}} · {style.label}: %{{text}}<extra></extra>",
    }
