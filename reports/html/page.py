"""The HTML report: one self-contained file that works offline."""

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from esprof import __version__
from esprof.analyzers.advisors.recommend import Recommendations
from esprof.analyzers.finding import ACTIVITIES
from esprof.analyzers.samples.flame import MIN_SHARE_OF_TREE, SampledPhase
from esprof.analyzers.summary.report import Report
from esprof.analyzers.views.kernel_names import short_kernel
from esprof.analyzers.views.probed import CurveSummary
from esprof.core.output import atomic_file
from esprof.core.readable import decimal, numbered, runs
from esprof.replay.whatif.memory.peak import parts_of
from esprof.reports import operations, units
from esprof.reports.charts import all_figures
from esprof.reports.charts.flame import tree_name
from esprof.reports.classes import time_class
from esprof.reports.html.environment import STYLE, TEMPLATES, file_text, policy, templates
from esprof.reports.html.plan_changes import changes
from esprof.reports.html.sliders import controls
from esprof.reports.terminal import probed
from esprof.reports.terminal.advice import placement
from esprof.reports.terminal.elastic import proof_text
from esprof.reports.terminal.tuned import OUTCOMES
from esprof.run.logs import EventKind

_SCRIPT = TEMPLATES / "report.js"
_PLOTLY = TEMPLATES.parent / "vendor" / "plotly-basic.min.js"
MAX_ROWS = 64
"""Rows of a table on the page; a note gives the number of further rows and where to find them."""

_PHASE_TEXTS: dict[SampledPhase, str] = {
    "stack": "steps with stacks",
    "plain": "steps without the profiler",
    "timed": "steps under the profiler, which slows Python down",
}

EVENT_TEXTS: dict[EventKind, str] = {
    "started": "started",
    "trying": "plan on trial",
    "scaled": "number of processes changed",
    "adopted": "plan adopted",
    "refused": "plan refused",
    "kept": "plan confirmed",
    "missed": "plan confirmed, gain below prediction",
    "reverted": "plan rolled back by the job",
    "checkpoint": "checkpoint written",
    "proven": "bits proven",
    "diverged": "bits diverged",
    "left": "left",
    "accepted": "plan accepted by a user",
    "rejected": "plan rejected by a user",
    "rolled_back": "plan rolled back by a user",
    "searched": "learning rate chosen",
}
"""Texts of the events of a job."""


def render_html(report: Report) -> str:
    """The page of `report`, as one string."""
    charts = {chart.id: chart for chart in all_figures(report)}
    grids = controls(report.explorer) if report.explorer else ()
    scripts = [plotly_script(), file_text(_SCRIPT)]
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=report.title,
            version=report.esprof_version,
            report=report,
            diagnosis=report.diagnosis,
            replay=report.replay,
            charts=charts,
            chart_data=_inert([*charts.values()]),
            grids=grids,
            cells=_inert([grid.cells for grid in grids]),
            scripts=[Markup(script) for script in scripts],
            policy=policy(scripts),
            style=Markup(file_text(STYLE)),
            parts=ACTIVITIES,
            rows=MAX_ROWS,
            phases=_PHASE_TEXTS,
            least_pct=100 * MIN_SHARE_OF_TREE,
            measured=_measured(report),
            event_texts=EVENT_TEXTS,
            proof=proof_text(report.proof.proven, report.proof.diverged) if report.proof is not None else "",
            outcomes=OUTCOMES,
            advice=report.advice,
            changes=changes(report.advice) if report.advice else (),
        )
    )


def render_plan(found: Recommendations, title: str) -> str:
    """The page of a recommendation alone, without a script."""
    return (
        _environment()
        .get_template("recommend.html")
        .render(
            title=title,
            version=__version__,
            advice=found,
            changes=changes(found),
            rows=MAX_ROWS,
            scripts=[],
            policy=policy([]),
            style=Markup(file_text(STYLE)),
        )
    )


def _measured(report: Report) -> list[tuple[str, str, CurveSummary]]:
    """(title, ranks, curve) for each benchmark; of ranks with the same benchmark, the slowest."""
    if report.probed is None:
        return []
    return [
        (
            probed.title(curve),
            runs(curve.ranks) if count == 1 else f"{runs(curve.ranks)}, the slowest of {count}",
            curve,
        )
        for curve, count in probed.slowest_of_alike(report.probed.curves)
    ]


def write_report(report: Report, path: Path) -> None:
    """Write the page to `path` atomically. Raises OutputError."""
    with atomic_file(path) as file:
        file.write(render_html(report).encode())


@cache
def _environment() -> Environment:
    environment = templates(TEMPLATES, longest=4_000)
    environment.globals |= {
        "time_class": time_class,
        "spread": operations.spread,
        "sorted_by": operations.SORTED_BY,
        "memory_parts": parts_of,
    }
    environment.filters |= {
        name: getattr(units, name)
        for name in (
            "duration",
            "interval",
            "saving",
            "pct",
            "bound_pct",
            "overhead",
            "error_pct",
            "times",
            "count",
            "rate",
            "rates",
            "hours",
            "size",
            "when",
            "ranks",
            "ignored",
            "symptom",
            "evidence",
            "uncertain",
            "joint_saving",
        )
    }
    environment.filters |= {
        "runs": runs,
        "plural": units.plural,
        "recorded_ranks": units.recorded_ranks,
        "named": _named,
        "shell": shlex.join,
        "short_kernel": short_kernel,
        "operation": operations.label,
        "tree_name": tree_name,
        "in_ms": _in_ms,
        "curve_rate": probed.rate,
        "ests": placement.ests_text,
    }
    return environment


def _named(numbers: Sequence[int], noun: str) -> str:
    return numbered(noun, numbers)


def _in_ms(us: float) -> str:
    return decimal(us / 1_000)


def _inert(data: Sequence[Any]) -> Markup:
    """`data` as JSON, safe inside <script>: `</script>` and `<!--` cannot occur."""
    text = msgspec.json.encode(data).decode()
    for unsafe in "<>&\u2028\u2029":
        text = text.replace(unsafe, f"\\u{ord(unsafe):04x}")
    return Markup(text)


@cache
def plotly_script() -> str:
    """plotly.js with the kinds of charts that the page has."""
    return file_text(_PLOTLY)
