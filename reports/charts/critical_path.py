"""Time on the critical path, by class."""

from esprof.replay.answer import ReplayAnswer
from esprof.reports.charts.figure import (
    ON_SECOND_AXIS,
    Figure,
    height_px,
    in_ms,
    laid_out,
    milliseconds_axis,
    rows_axis,
    text_column,
)
from esprof.reports.classes import time_class
from esprof.reports.units import duration, pct


def draw(answer: ReplayAnswer) -> Figure:
    """A bar for each class of time on the critical path, longest first."""
    path = answer.critical_path
    classes = sorted(((us, name) for name, us in path.classes.items() if us > 0), reverse=True)
    styles = [time_class(name) for _, name in classes]
    longest = max((us for us, _ in classes), default=0.0)
    data = {
        "type": "bar",
        "orientation": "h",
        "x": [in_ms(us) for us, _ in classes],
        "y": list(range(len(classes))),
        "marker": {"color": [style.colour for style in styles]},
        "hoverinfo": "none",
    }
    layout = laid_out(
        height=height_px(len(classes), 30),
        xaxis=milliseconds_axis(in_ms(longest) * 1.03),
        yaxis=rows_axis([style.label for style in styles]),
        yaxis2=text_column([f"{duration(us)} · {pct(100 * us / path.span_us)}" for us, _ in classes]),
    )
    return Figure("critical-path-chart", "Time on the critical path by class", (), [data, ON_SECOND_AXIS], layout)
