"""`esprof.reports.render`."""

import json

import pytest

from esprof.core.errors import UsageError
from esprof.reports import render
from tests.cases import report as case


def test_text_holds_the_diagnosis_and_the_replay():
    text = render(case.report())
    assert text.startswith(case.diagnosis().verdict)
    assert "Predictions for" in text


def test_html_is_the_page():
    assert render(case.report(), "html").startswith("<!doctype html>")


def test_json_is_the_whole_report_with_its_schema_first():
    whole = json.loads(render(case.report(), "json"))
    assert next(iter(whole.items())) == ("schema", "esprof.report/1")
    assert len(whole["timeline"]["bars"]) == whole["timeline"]["shown"]


def test_any_other_format_is_refused():
    with pytest.raises(UsageError, match="xlsx"):
        render(case.report(), "xlsx")
