"""The result of `check` as text, Markdown and JUnit: valid, and safe from hostile names."""

import re
from xml.etree import ElementTree

import pytest

from esprof.analyzers.gate.baseline import RunIdentity
from esprof.analyzers.gate.check import Check, MetricCheck, MoreSteps
from esprof.reports.terminal.check import render_junit, render_markdown, render_text, sentence
from esprof.reports.terminal.screen import Screen
from esprof.run.run import RunWarning

HOSTILE = "<script>alert(1)</script>\n::error file=x::owned\x1b[31m\u202e|`*[a](http://x)@someone \uffff"


def metric(**fields) -> MetricCheck:
    defaults = {
        "metric": "step_time",
        "rule": "step_time:+5%",
        "outcome": "regressed",
        "improved": False,
        "unit": "%",
        "change": 7.94,
        "low": 6.1,
        "high": 9.44,
        "between_runs": None,
        "runs": 1,
        "limit": 5,
        "value_unit": "us",
        "baseline_value": 101_200,
        "run_value": 109_240,
        "p": 0.0004,
        "worse_probability": 0.97,
        "statistic": "median",
        "baseline_slow": 0,
        "run_slow": 0,
        "block": 6,
        "more_cpu_wait_us": None,
        "baseline_steps": 80,
        "run_steps": 90,
        "more_steps": None,
    }
    return MetricCheck(**(defaults | fields))


def answer(*metrics: MetricCheck, command=("torchrun", "train.py"), warnings=()) -> Check:
    identity = RunIdentity(world_size=1, hosts=1, devices={0: "cpu"}, versions={})
    return Check(
        outcome=metrics[0].outcome,
        phase="plain",
        alpha=0.01,
        min_steps=10,
        metrics=metrics,
        identity=identity,
        run_command=command,
        baseline_command=command,
        warnings=warnings,
    )


UNSURE = metric(
    metric="samples_per_s",
    rule="samples_per_s:-5%",
    outcome="inconclusive",
    change=-3.2,
    low=-8.0,
    high=1.0,
    limit=-5,
    value_unit="1/s",
    p=0.2,
    more_steps=MoreSteps(run=41, baseline=1),
)


def test_text_has_verdict_figures_and_compared_runs():
    assert render_text(answer(metric())) == (
        "check: regressed\n"
        "\n"
        "metric            baseline  this run  change   interval        limit  p       steps    outcome\n"
        "step_time median  101.2 ms  109.2 ms  +7.94 %  +6.1 … +9.44 %  +5 %   <0.001  90 / 80  regressed\n"
        "\n"
        "step_time median changed by +7.94 %, beyond the limit of +5 %, by a statistically significant difference.\n"
        "Compared: plain steps (no profiler), in blocks of 6; alpha 0.01, interval 98 %\n"
        "This run: torchrun train.py\n"
        "Baseline: torchrun train.py"
    )


def test_on_a_narrow_screen_each_metric_is_a_paragraph():
    text = render_text(answer(metric(), UNSURE), Screen(40))
    table, _ = text.removeprefix("check: regressed\n\n").split("\n\n")
    assert table.splitlines()[0] == "metric step_time median"
    assert "change +7.94 %" in " ".join(table.split())
    assert max(map(len, table.splitlines())) <= 40


def test_sentences():
    assert (
        sentence(metric())
        == "step_time median changed by +7.94 %, beyond the limit of +5 %, by a statistically significant difference."
    )
    assert sentence(UNSURE) == (
        "samples_per_s median changed by −3.2 %: not distinguishable from noise; "
        "about 41 more steps in this run and 1 more step in the baseline would decide."
    )
    mean = sentence(metric(statistic="mean", run_slow=15, baseline_slow=1))
    assert mean.startswith("step_time mean changed by")
    assert "15 of 90 steps are worse than the baseline's median by more than 50 %; in the baseline 1 of 80" in mean
    assert "no " not in sentence(metric(outcome="unchanged", change=0.2))
    assert "better" in sentence(metric(outcome="unchanged", change=-6, improved=True))
    assert "too close to the limit" in sentence(metric(outcome="inconclusive", change=5))


def test_a_significant_gain_is_shown_as_improved():
    check = answer(metric(outcome="unchanged", change=-6, improved=True))
    first, *rest = render_text(check).splitlines()
    assert (check.outcome, first) == ("unchanged", "check: improved")
    assert rest[2].endswith("  improved")
    assert render_text(answer(metric(outcome="unchanged", improved=False))).startswith("check: unchanged\n")


def test_markdown_table_has_equal_columns():
    lines = [line for line in render_markdown(answer(metric(), UNSURE)).splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1


def test_junit_counts_and_cases():
    root = ElementTree.fromstring(render_junit(answer(metric(), UNSURE, metric(outcome="unchanged", change=1))))
    (suite,) = root
    assert root.tag == "testsuites"
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        "step_time:+5% median",
        "samples_per_s:-5% median",
        "step_time:+5% median",
    ]
    assert [[child.tag for child in case] for case in cases] == [["failure"], ["skipped"], []]
    assert cases[0][0].get("message") == sentence(metric())


@pytest.fixture(params=["command", "warning"])
def hostile(request) -> Check:
    if request.param == "command":
        return answer(metric(), command=("python", HOSTILE))
    return answer(metric(), warnings=(RunWarning("code", HOSTILE),))


def test_hostile_names_stay_data_in_text(hostile):
    text = render_text(hostile)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert not re.search(r"^\s*::", text, re.MULTILINE)


def test_hostile_names_stay_data_in_markdown(hostile):
    text = render_markdown(hostile)
    outside = re.sub(r"<code>.*?</code>", "", text)
    assert "script" not in outside
    (inside, *_) = [code for code in re.findall(r"<code>(.*?)</code>", text) if "script" in code]
    assert not set(inside.replace("&#", "")) & set("<>|`*[]()@:_\n")


def test_hostile_names_leave_junit_valid(hostile):
    root = ElementTree.fromstring(render_junit(hostile))
    output = root.findtext("testsuite/system-out")
    assert output is not None
    assert "<script>" in output
    assert "\x1b" not in output


def test_a_regression_explained_by_waiting_for_a_cpu_is_reported():
    said = sentence(metric(outcome="inconclusive", more_cpu_wait_us=30_000.0))
    assert "beyond the limit" in said
    assert "30.0 ms longer for a CPU" in said
