"""`esprof check` as JUnit XML, the format in which CI systems read test results: one test case a rule."""

from xml.etree import ElementTree

from esprof.analyzers.gate.check import Check, MetricCheck
from esprof.reports.terminal.check import render_text, sentence


def render_junit(check: Check) -> str:
    """A regression is a failure, an inconclusive rule is skipped; the terminal's text is the suite's output."""
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
    """`text`, which is printable already, without the two characters beyond those that XML has no way to write."""
    return text.translate({0xFFFE: "\ufffd", 0xFFFF: "\ufffd"})
