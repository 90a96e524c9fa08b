"""`esprof compare`: the form follows the name of the file, and --window the step."""

import json

import pytest
from click.testing import CliRunner

from esprof.core.errors import UsageError
from esprof.reports.commands import compare
from tests.cases.compared import Made, made
from tests.cases.run_directory import write_run


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    for name, job in (("old", Made()), ("new", Made().but(buckets=9))):
        run = made(job)
        tables = {(table, rank): getattr(run, table)(rank) for rank in run.ranks for table in ("events", "steps")}
        write_run(folder / name, run.meta, tables)
    return str(folder / "old"), str(folder / "new")


def invoke(*arguments):
    return CliRunner().invoke(compare.command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.html", "<!doctype html>"), ("a.md", "### esprof compare"), ("a.json", "{"), ("a", "A step")],
)
def test_the_form_follows_the_name_of_the_file(pair, tmp_path, name, begins):
    invoke(*pair, "-o", tmp_path / name)
    text = (tmp_path / name).read_text()
    assert text.startswith(begins)
    assert "exposed communication" in text or "communication" in json.loads(text)["parts"][0]["name"]


def test_an_option_precedes_the_name(pair, tmp_path):
    invoke(*pair, "-o", tmp_path / "a.html", "--json")
    assert json.loads((tmp_path / "a.html").read_text())["schema"] == "esprof.compare/1"
    assert invoke(*pair, "--format", "html").stdout.startswith("<!doctype html>")


def test_a_page_is_not_shown_on_a_terminal(pair, monkeypatch):
    def refuse(what):
        raise UsageError(f"the {what} cannot be shown on a terminal")

    monkeypatch.setattr(compare, "refuse_on_terminal", refuse)
    with pytest.raises(UsageError, match="the page cannot be shown"):
        invoke("no", "runs", "--format", "html")


def test_a_window_that_one_run_lacks_is_refused(pair):
    with pytest.raises(UsageError, match="old: step 5 is in no window"):
        invoke(*pair, "--window", 5)
    assert invoke(*pair, "--window", 62).stdout.startswith("A step takes")
