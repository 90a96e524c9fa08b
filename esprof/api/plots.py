"""The charts of `esprof report` as plotly figures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from esprof.analyzers.steps.step_times import step_times
from esprof.analyzers.summary.summary import WHAT_IFS
from esprof.analyzers.summary.timeline_excerpt import excerpt
from esprof.core.errors import InputError
from esprof.reports.charts import Figure
from esprof.reports.charts import breakdown as of_breakdown
from esprof.reports.charts import critical_path as of_critical_path
from esprof.reports.charts import step_times as of_steps
from esprof.reports.charts import timeline as of_timeline
from esprof.reports.charts import what_if as of_what_if

if TYPE_CHECKING:
    from esprof.api.analysis import Analysis


class Plots:
    """The charts of an analysis, as in `esprof report`."""

    def __init__(self, analysis: "Analysis") -> None:
        self._analysis = analysis

    def breakdown(self) -> go.Figure:
        """A stacked bar per rank: the time of its mean step by activity."""
        return _figure(of_breakdown.draw(self._analysis.diagnosis))

    def timeline(self) -> go.Figure:
        """What each thread and stream of every rank did in the last steady-state steps; at most a few thousand bars."""
        return _figure(of_timeline.draw(excerpt(self._analysis.replayed)))

    def what_if(self, scenarios: str | Sequence[str] = WHAT_IFS) -> go.Figure:
        """A bar per answered scenario, with its interval, compared with the measured step."""
        return _figure(of_what_if.draw(self._analysis.answer(scenarios)))

    def critical_path(self) -> go.Figure:
        """A bar per class of time on the critical path, longest first."""
        return _figure(of_critical_path.draw(self._analysis.answer()))

    def steps(self) -> go.Figure:
        """A point per step of the run: its duration, and the finding that names it. Raises InputError if no step ran without
        the profiler."""
        times = step_times(self._analysis.job, self._analysis.diagnosis.findings)
        if times is None:
            raise InputError(
                "no step ran without the profiler",
                path=self._analysis.run.path,
                remedy="Use plot.breakdown() or plot.timeline(): they show profiled steps.",
            )
        return _figure(of_steps.draw(times))


def _figure(chart: Figure) -> go.Figure:
    """Convert a chart and add plotly's legend: on the page, the legend is in the text."""
    return go.Figure(data=chart.data, layout=chart.layout | {"showlegend": bool(chart.legend)})
