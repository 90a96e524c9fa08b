"""`esprof check` as the terminal's text, as a pull request's Markdown, and as JUnit XML and annotations, which CI systems
read."""

import math
import re
import shlex
from collections.abc import Callable, Mapping
from xml.etree import ElementTree

from esprof.analyzers.gate.baseline import SHOWN_PHASE
from esprof.analyzers.gate.check import Check, MetricCheck
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, grid

_HEADINGS = ("metric", "baseline", "this run", "change", "interval", "limit", "p", "steps", "outcome")


def render_text(check: Check, screen: Screen = PLAIN) -> str:
    """The result as text, verdict first. No line begins with a name from the run."""
    table = grid(*_HEADINGS, padding=2)
    for column in table.columns:
        column.no_wrap = True
    for metric in check.metrics:
        table.add_row(*_cells(metric))
    names = [f"{label}: {text}" for label, text in _names(check)]
    sentences = [sentence(metric) for metric in check.metrics]
    return "\n".join([f"check: {_label(check)}", "", drawn(screen, table), "", *sentences, _compared(check), *names])


def render_markdown(check: Check) -> str:
    """The result as GitHub Markdown; every name from the run is escaped."""
    rows = [_HEADINGS, ("---",) * len(_HEADINGS), *(_cells(metric) for metric in check.metrics)]
    table = [f"| {' | '.join(row)} |" for row in rows]
    sentences = [f"- {sentence(metric)}" for metric in check.metrics]
    names = [f"- {label}: {_inert(text)}" for label, text in _names(check)]
    return "\n".join(
        [f"### esprof check: {_label(check)}", "", *table, "", *sentences, f"- {_compared(check)}", *names]
    )


def _label(check: Check) -> str:
    """The outcome in words: `improved` where JSON says `unchanged` and a metric is significantly better."""
    improved = check.outcome == "unchanged" and any(metric.improved for metric in check.metrics)
    return "improved" if improved else check.outcome


def sentence(metric: MetricCheck) -> str:
    """The outcome of one rule in words, with a remedy."""
    change = f"{_name(metric)} changed by {_signed(metric.change, metric.unit)}"
    limit = _signed(metric.limit, metric.unit)
    if metric.outcome == "regressed":
        return f"{change}, beyond the limit of {limit}, by a statistically significant difference{_slow(metric)}."
    if metric.outcome == "unchanged":
        return f"{change}: better than the baseline." if metric.improved else f"{change}: within the limit of {limit}."
    if metric.more_cpu_wait_us is not None:
        return (
            f"{change}, beyond the limit of {limit}, but a step waited {units.duration(metric.more_cpu_wait_us)} longer "
            "for a CPU, which other processes may have used: compare again on an idle machine."
        )
    if metric.between_runs is not None and metric.more_steps is None:
        return f"{change}: {_between_runs(metric)}."
    if metric.more_steps is None:
        return f"{change}: too close to the limit of {limit} to decide with any practical number of steps."
    return f"{change}: not distinguishable from noise; {_more(metric)} would decide."


def _name(metric: MetricCheck) -> str:
    return f"{metric.metric} {metric.statistic}"


def _between_runs(metric: MetricCheck) -> str:
    """How far runs of the same code differ, and which change would be significant."""
    assert metric.between_runs is not None
    provable = metric.between_runs + (abs(metric.limit) if metric.statistic == "mean" else 0.0)
    worse = math.copysign(max(provable, abs(metric.limit)), metric.limit or 1.0)
    return (
        f"by how the {metric.runs} runs of the baseline differ, one more run of the same code may be worse by "
        f"{_signed(metric.between_runs, metric.unit).lstrip('+')}, so that only a change beyond "
        f"{_signed(worse, metric.unit)} is significant here"
    )


def _slow(metric: MetricCheck) -> str:
    """The number of slow steps, which raise a mean."""
    if metric.statistic != "mean":
        return ""
    return (
        f": {metric.run_slow} of {metric.run_steps} steps are worse than the baseline's median by more than 50 %; "
        f"in the baseline {metric.baseline_slow} of {metric.baseline_steps}"
    )


def _more(metric: MetricCheck) -> str:
    assert metric.more_steps is not None
    wanted = {"this run": metric.more_steps.run, "the baseline": metric.more_steps.baseline}
    return "about " + " and ".join(f"{units.plural(n, 'more step')} in {where}" for where, n in wanted.items() if n)


def _cells(metric: MetricCheck) -> tuple[str, ...]:
    return (
        _name(metric),
        _value(metric.baseline_value, metric.value_unit),
        _value(metric.run_value, metric.value_unit),
        _signed(metric.change, metric.unit),
        f"{_signed(metric.low, '')}… {_signed(metric.high, metric.unit)}",
        _signed(metric.limit, metric.unit),
        "<0.001" if metric.p < 0.001 else f"{metric.p:.3f}",
        f"{metric.run_steps} / {metric.baseline_steps}",
        "improved" if metric.improved else metric.outcome,
    )


def _compared(check: Check) -> str:
    if check.is_itself:
        return "Compared: a run with itself; all steps are those of the baseline"
    blocks = ", ".join(dict.fromkeys(str(metric.block) for metric in check.metrics))
    interval = f"{100 * (1 - 2 * check.alpha):g} %"
    return f"Compared: {SHOWN_PHASE[check.phase]}, in blocks of {blocks}; alpha {check.alpha:g}, interval {interval}"


def _names(check: Check) -> list[tuple[str, str]]:
    """Texts from the runs as (label, text), made printable."""
    names = [
        ("This run", shlex.join(check.run_command) or "command unknown"),
        ("Baseline", shlex.join(check.baseline_command) or "command unknown"),
        *(("Warning", warning.message) for warning in check.warnings),
    ]
    return [(label, printable(text, 400)) for label, text in names]


def _value(value: float, unit: str) -> str:
    return units.duration(value) if unit == "us" else f"{units.rate(value)}/s"


def _signed(value: float, unit: str) -> str:
    number = f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"
    return f"{number} {unit}".replace("-", "−")


def _inert(text: str) -> str:
    """`text` as inline code, with Markdown, HTML, links and mentions escaped."""
    return "<code>" + re.sub(r"[^\w ./=-]|_", lambda match: f"&#{ord(match.group())};", text) + "</code>"


def render_junit(check: Check) -> str:
    """One test case per rule: a regression is a failure, an inconclusive rule is skipped. system-out holds the text."""
    outcomes = [metric.outcome for metric in check.metrics]
    attributes = {
        "name": "esprof check",
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("regressed")),
        "errors": "0",
        "skipped": str(outcomes.count("inconclusive")),
    }
    suite = ElementTree.Element("testsuite", attributes)
    suite.extend(_case(metric) for metric in check.metrics)
    ElementTree.SubElement(suite, "system-out").text = _legal(render_text(check))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _case(metric: MetricCheck) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="esprof.check", name=f"{metric.rule} {metric.statistic}")
    if metric.outcome == "regressed":
        ElementTree.SubElement(case, "failure", type="regression", message=sentence(metric))
    elif metric.outcome == "inconclusive":
        ElementTree.SubElement(case, "skipped", message=sentence(metric))
    return case


def _legal(text: str) -> str:
    """`text`, already printable, without the two further characters that XML forbids."""
    return text.translate({0xFFFE: "\ufffd", 0xFFFF: "\ufffd"})


def render_github(check: Check) -> str:
    """One annotation of a GitHub Actions run per rule: an error for a regression, a warning for what cannot be decided."""
    levels = {"regressed": "error", "inconclusive": "warning", "unchanged": "notice"}
    return "\n".join(
        f"::{levels[metric.outcome]} title=esprof check::{_in_command(sentence(metric))}" for metric in check.metrics
    )


def _in_command(text: str) -> str:
    """`text` as the message of a workflow command (GitHub's toolkit, `packages/core/src/command.ts`)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


RENDERERS: Mapping[str, Callable[[Check], str]] = {
    "markdown": render_markdown,
    "junit": render_junit,
    "github": render_github,
}
"""Format that programs read -> the function that writes it."""
