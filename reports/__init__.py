"""Renderers, and the commands of the command line. Renderers only format results."""

from typing import TYPE_CHECKING

from esprof.core.errors import UsageError

if TYPE_CHECKING:
    from esprof.analyzers.summary.report import Report

__all__ = ["FORMATS", "render"]

FORMATS = ("text", "html", "json")


def render(report: "Report", format: str = "text") -> str:
    """`report` as text for a terminal, as the self-contained page, or as JSON. Raises UsageError for another format."""
    # Renderers are imported lazily: every command imports this package, and must start fast.
    if format == "text":
        from esprof.reports.terminal.diagnosis import draw_diagnosis
        from esprof.reports.terminal.replay import draw_replay

        return f"{draw_diagnosis(report.diagnosis)}\n\n{draw_replay(report.replay)}"
    if format == "html":
        from esprof.reports.html.page import render_html

        return render_html(report)
    if format == "json":
        import msgspec

        return msgspec.json.encode(report).decode()
    raise UsageError(f"there is no format {format!r}", remedy=f"Formats: {', '.join(FORMATS)}.")
