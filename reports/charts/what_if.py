"""Predicted step time of each what-if."""

from typing import Any

from esprof.replay.answer import ReplayAnswer, WhatIf
from esprof.reports.charts.figure import (
    MARGIN,
    ON_SECOND_AXIS,
    Figure,
    height_px,
    in_ms,
    label,
    laid_out,
    milliseconds_axis,
    rows_axis,
    text_column,
)
from esprof.reports.units import duration, times


def draw(answer: ReplayAnswer) -> Figure:
    """A bar for each predicted scenario, with its interval, and a line at the measured step."""
    answered = [scenario for scenario in answer.what_if if scenario.predicted_us is not None]
    now = in_ms(answer.step_us)
    reach = max([now, *(in_ms(_end(scenario)) for scenario in answered)])
    figures = [f"{duration(scenario.predicted_us)} · {times(scenario.speedup)}" for scenario in answered]
    layout = laid_out(
        height=height_px(len(answered), 38) + 20,
        margin=MARGIN | {"b": 30},
        xaxis=milliseconds_axis(reach * 1.03),
        yaxis=rows_axis([label(scenario.spec, 36) for scenario in answered]),
        yaxis2=text_column(figures),
        shapes=[{"type": "line", "x0": now, "x1": now, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot"}}],
        annotations=[_below(now, f"measured {duration(answer.step_us)}")],
    )
    alt = f"Predicted step time of each what-if, against {duration(answer.step_us)} measured"
    return Figure("what-if-chart", alt, (), [_predicted(answered), ON_SECOND_AXIS], layout)


def _predicted(answered: list[WhatIf]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "x": [in_ms(scenario.predicted_us) for scenario in answered],
        "y": list(range(len(answered))),
        "marker": {"color": "#74879c"},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [in_ms(_end(scenario)) - in_ms(scenario.predicted_us) for scenario in answered],
            "arrayminus": [in_ms(scenario.predicted_us) - in_ms(_start(scenario)) for scenario in answered],
            "thickness": 1.5,
            "width": 4,
        },
        "hoverinfo": "none",
    }


def _below(x: float, text: str) -> dict[str, Any]:
    return {"x": x, "y": 0, "yref": "paper", "yanchor": "top", "text": text, "showarrow": False}


def _start(scenario: WhatIf) -> float | None:
    return scenario.predicted_us if scenario.low_us is None else scenario.low_us


def _end(scenario: WhatIf) -> float | None:
    return scenario.predicted_us if scenario.high_us is None else scenario.high_us
