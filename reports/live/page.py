"""The HTML of the page of a job, and of the list of jobs: full pages, and sections that replace older ones."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment

from esprof.core.plan import CompressionBody
from esprof.core.readable import runs
from esprof.reports import units
from esprof.reports.html.environment import templates
from esprof.reports.html.page import EVENT_TEXTS
from esprof.reports.live.chart import SIDE, chart_of
from esprof.reports.live.decisions import NO_PROMISE_US
from esprof.reports.live.view import MAX_ROWS, View
from esprof.reports.terminal.advice.placement import ests_text
from esprof.reports.terminal.tuned import OUTCOMES

_TEMPLATES = Path(__file__).parent / "templates"
_REPORT_STYLE = Path(__file__).parents[1] / "html" / "templates" / "report.css"

JOB_SECTIONS = ("problems", "message", "now", "plan", "advice", "steps", "ranks", "rounds", "history")
_OF_ANY_RUN = JOB_SECTIONS[:3]
"""Sections of a Run that is no elastic job; the page leaves empty ones out."""


def job_sections(view: View, page_token: str, base: str) -> dict[str, str]:
    """The sections of a job's page by name. `base` is the address of the page, to which its forms are sent."""
    chart, shown = chart_of(view.steps, view.marks), _OF_ANY_RUN if view.state == "recorded" else JOB_SECTIONS
    return dict.fromkeys(JOB_SECTIONS, "") | {
        name: _environment()
        .get_template(f"{name}.html")
        .render(view=view, chart=chart, page_token=page_token, base=base)
        .strip()
        for name in shown
    }


def fault_sections(fault: str) -> dict[str, str]:
    """The sections of a page that cannot be shown."""
    message = {"message": f"The files of this job cannot be shown: {fault}"}
    return dict.fromkeys(JOB_SECTIONS, "") | {
        "message": _environment().get_template("message.html").render(view=message)
    }


def list_sections(listed: Sequence[tuple[str, View]]) -> dict[str, str]:
    """The sections of the list of jobs. `listed` has the address and the view of each."""
    return {"jobs": _environment().get_template("jobs.html").render(listed=listed)}


def full_page(title: str, sections: dict[str, str], *, events: str, server: str, seen: int, home: str | None) -> str:
    """A page with these sections. `events` is the address of its event stream, `seen` the number of the last change."""
    return (
        _environment()
        .get_template("page.html")
        .render(title=title, sections=sections, events=events, server=server, seen=seen, home=home)
    )


@cache
def asset(name: str) -> bytes:
    """A file that pages load: the style sheet or the script."""
    if name == "live.css":
        return _REPORT_STYLE.read_bytes() + (_TEMPLATES / name).read_bytes()
    return (_TEMPLATES / name).read_bytes()


@cache
def _environment() -> Environment:
    environment = templates(_TEMPLATES, longest=2_000)
    environment.globals |= {
        "event_texts": EVENT_TEXTS,
        "outcomes": OUTCOMES,
        "rows": MAX_ROWS,
        "side": SIDE,
        "no_promise_us": NO_PROMISE_US,
    }
    environment.filters |= {
        name: getattr(units, name)
        for name in ("duration", "interval", "pct", "count", "rate", "when", "plural", "error_pct")
    }
    environment.filters |= {"ests": ests_text, "runs": runs, "codecs": _codecs, "span": _span, "tick": _tick}
    return environment


def _codecs(body: CompressionBody) -> str:
    return ", ".join(sorted({choice.codec for choice in (body.buckets or (body.default,))}))


def _tick(us: float) -> str:
    """The label of a tick of the time axis: `50 ms`, `2 s`."""
    return f"{us / 1e6:g} s" if us >= 1e6 else f"{us / 1e3:g} ms"


def _span(seconds: float) -> str:
    """A rounded span of time: `30 s`, `5 min`, `3 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"
