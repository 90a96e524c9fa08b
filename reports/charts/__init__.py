"""The charts of a report as plotly figures. Each module has a pure function `draw`."""

from collections.abc import Iterable

from esprof.analyzers.summary.report import Report
from esprof.reports.charts import breakdown, critical_path, flame, memory, probed, step_times, timeline, what_if
from esprof.reports.charts.figure import Figure

__all__ = ["Figure", "all_figures"]


def all_figures(report: Report) -> Iterable[Figure]:
    """Every chart that has something to show, in the order of the page."""
    yield breakdown.draw(report.diagnosis, report.charted_ranks)
    if report.steps is not None:
        yield step_times.draw(report.steps)
    if any(scenario.answered for scenario in report.replay.what_if):
        yield what_if.draw(report.replay)
    if report.replay.critical_path.span_us > 0:
        yield critical_path.draw(report.replay)
    if report.timeline.bars:
        yield timeline.draw(report.timeline)
    if report.flame is not None:
        yield flame.draw(report.flame)
    if report.memory is not None:
        yield memory.draw(report.memory)
        if (phases := memory.draw_phases(report.memory)) is not None:
            yield phases
    yield from probed.draw_all(report.probed)
