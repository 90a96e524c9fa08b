"""The commands that render, on a small Run on disk: their output on stdout, on stderr and in files."""

import json
import re
import sys

import click
import pytest
from click.testing import CliRunner

from esprof import load
from esprof.core.errors import InputError, MismatchError, OutputError, UsageError
from esprof.recorder.launcher.launch import Recording
from esprof.recorder.launcher.order_window import Attached, RankAnswer
from esprof.reports.commands import (
    check,
    common,
    compare,
    demo,
    diagnose,
    explain,
    merge,
    ops,
    record,
    replay,
    report,
    run_job,
)
from esprof.reports.pyproject import read_ignores
from esprof.run.directory import write_meta, write_table
from esprof.run.schema import SAMPLES, table
from tests.cases.graph import gloo, op, run_of, step
from tests.cases.run_directory import write_run

MS = 1_000.0


def rank_rows(slow_ms):
    """Six steps of 50 ms: 10 ms of forward, `slow_ms` of nothing recorded, 20 ms of backward, all-reduce, optimizer."""
    rows = []
    for number in range(6):
        begin = number * 50 * MS
        arrive = begin + (30 + slow_ms) * MS
        rows += [
            step(number, begin, begin + 50 * MS),
            op("aten::linear", begin, 10 * MS),
            op("autograd::engine::evaluate_function: AddmmBackward0", begin + (10 + slow_ms) * MS, 20 * MS),
            *gloo(arrive - 5, arrive, begin + 44 * MS),
            op("Optimizer.step", begin + 45 * MS, 5 * MS),
        ]
    return rows


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A Run of two ranks; rank 1 spends 10 ms more per step in code that was not recorded."""
    run = run_of({0: rank_rows(0), 1: rank_rows(10)})
    path = tmp_path_factory.mktemp("runs") / "two-ranks"
    write_run(path, run.meta, {("events", rank): run.events(rank) for rank in run.ranks})
    return str(path)


def invoke(module, *arguments):
    return CliRunner().invoke(module.command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("module", "arguments", "schema"),
    [
        (replay, ["--what-if", "cpu=2x"], "esprof.replay/2"),
        (diagnose, [], "esprof.diagnose/2"),
        (ops, [], "esprof.ops/1"),
    ],
)
def test_json_goes_to_stdout_alone_with_its_schema_first(saved, module, arguments, schema):
    answer = invoke(module, saved, "--json", *arguments)
    assert answer.exit_code == 0
    assert answer.stderr == ""
    assert next(iter(json.loads(answer.stdout).items())) == ("schema", schema)


def test_two_runs_are_compared_as_text_markdown_and_json(saved, tmp_path):
    run = run_of({0: rank_rows(0), 1: rank_rows(0)})
    write_run(tmp_path / "even", run.meta, {("events", rank): run.events(rank) for rank in run.ranks})
    text = invoke(compare, saved, tmp_path / "even")
    assert (text.exit_code, text.stderr) == (0, "")
    assert "Parts of the change of a step" in text.stdout
    page = invoke(compare, saved, tmp_path / "even", "--format", "markdown").stdout
    assert page.startswith("### esprof compare: ")
    assert "| part | before | after | change |" in page
    answer = json.loads(invoke(compare, saved, tmp_path / "even", "--json").stdout)
    assert next(iter(answer.items())) == ("schema", "esprof.compare/1")
    with pytest.raises(UsageError, match="exclude each other"):
        invoke(compare, saved, saved, "--json", "--format", "markdown")


def test_runs_of_other_settings_are_compared_only_if_asked_for(saved, tmp_path):
    run = run_of({0: rank_rows(0)})
    write_run(tmp_path / "one", run.meta, {("events", 0): run.events(0)})
    with pytest.raises(MismatchError, match="world size: 2 before, 1 after"):
        invoke(compare, saved, tmp_path / "one")
    text = invoke(compare, saved, tmp_path / "one", "--anyway").stdout
    assert "world size: 2 before, 1 after" in " ".join(text.split())


def test_replay_answers_what_was_asked_in_that_order(saved):
    answer = json.loads(invoke(replay, saved, "--json", "--what-if", "gpu=2x,cpu=2x", "--what-if", "data=0").stdout)
    assert [scenario["spec"] for scenario in answer["what_if"]] == ["gpu=2x,cpu=2x", "data=0"]


def test_a_typo_in_a_scenario_is_reported_before_the_run_is_read(tmp_path):
    with pytest.raises(UsageError, match="gqu"):
        invoke(replay, tmp_path / "there is no run here", "--what-if", "gqu=2x")


def test_text_is_plain_off_a_terminal(saved):
    answer = invoke(diagnose, saved)
    assert "Rank 1" in answer.stdout.splitlines()[0]
    assert "\x1b" not in answer.stdout
    assert answer.stderr == ""


@pytest.mark.parametrize("module", [replay, diagnose, ops])
def test_columns_sets_the_width_of_a_result_without_a_terminal(module, saved, monkeypatch):
    widths = []
    for columns in (50, 90):
        monkeypatch.setenv("COLUMNS", str(columns))
        widths.append(max(map(len, invoke(module, saved).stdout.splitlines())))
        assert widths[-1] <= columns
    assert widths[0] < widths[1]


def test_a_result_file_is_not_overwritten_without_force(saved, tmp_path):
    file = tmp_path / "answer.json"
    written = invoke(diagnose, saved, "--json", "-o", file)
    assert written.stdout == ""
    assert written.stderr == f"Wrote the result to {file}\n"
    assert json.loads(file.read_text())["schema"] == "esprof.diagnose/2"
    with pytest.raises(OutputError, match="already exists"):
        invoke(diagnose, saved, "-o", file)
    invoke(diagnose, saved, "-o", file, "--force")
    assert file.read_text().startswith("Rank 1")


def test_report_writes_one_page_and_reports_it_once(saved, tmp_path):
    page = tmp_path / "deep" / "report.html"
    written = invoke(report, saved, "-o", page)
    assert written.stdout == ""
    assert written.stderr == f"Wrote the page to {page}\n"
    assert page.read_text().startswith("<!doctype html>")
    assert list(page.parent.iterdir()) == [page]


def test_report_refuses_to_overwrite_before_it_reads_anything(tmp_path):
    page = tmp_path / "report.html"
    page.write_text("mine")
    with pytest.raises(OutputError, match="already exists"):
        invoke(report, tmp_path / "there is no run here", "-o", page)
    assert page.read_text() == "mine"


def test_report_goes_to_stdout_when_asked(saved):
    written = invoke(report, saved, "-o", "-")
    assert written.stderr == ""
    assert written.stdout.startswith("<!doctype html>")
    assert "two-ranks" in re.search("<title>(.*)</title>", written.stdout)[1]


@pytest.mark.parametrize(("module", "what"), [(report, "page"), (merge, "run")])
def test_written_files_are_reported_in_json(module, what, saved, tmp_path):
    out = tmp_path / "out"
    said = invoke(module, saved, "-o", out, "--json")
    answer = json.loads(said.stdout)
    assert next(iter(answer.items())) == ("schema", "esprof.written/1")
    assert (answer["what"], answer["path"]) == (what, str(out))
    assert answer["bytes"] == sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) > 1000
    assert (answer["world_size"], answer["ranks"], answer["missing_ranks"]) == (2, [0, 1], [])
    assert (
        answer["warnings"] == json.loads(invoke(diagnose, out if what == "run" else saved, "--json").stdout)["warnings"]
    )
    assert str(out) in said.stderr


def test_a_page_and_its_json_do_not_share_stdout(tmp_path):
    with pytest.raises(UsageError, match="both write to stdout"):
        invoke(report, tmp_path / "there is no run here", "-o", "-", "--json")


def test_a_page_is_refused_to_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="terminal"):
        common.refuse_on_terminal("page")


@pytest.mark.parametrize("module", [replay, diagnose, ops, report])
def test_a_missing_input_is_an_input_error(module, tmp_path):
    with pytest.raises(InputError):
        invoke(module, tmp_path / "nothing", *(["-o", "-"] if module is report else []))


def test_several_traces_are_one_run(tmp_path):
    files = [tmp_path / f"rank{rank}.pt.trace.json" for rank in range(2)]
    for rank, file in enumerate(files):
        rows = [
            {"ph": "X", "cat": row.cat, "name": row.name, "pid": row.pid, "tid": row.tid, "ts": row.ts, "dur": row.dur}
            for row in rank_rows(10 * rank)
        ]
        file.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": rows}))
    answer = json.loads(invoke(diagnose, *files, "--json").stdout)
    assert answer["world_size"] == 2
    assert [rank["rank"] for rank in answer["breakdown"]] == [0, 1]


def test_ops_answers_what_was_asked(saved):
    asked = ["--rank", 1, "--top", 1, "--sort", "total-cpu", "--filter", "aten|autograd"]
    answer = json.loads(invoke(ops, saved, "--json", *asked).stdout)
    assert (answer["ranks"], answer["found"], answer["sort"]) == ([1], 2, "total-cpu")
    assert [op["name"] for op in answer["ops"]] == ["autograd::engine::evaluate_function: AddmmBackward0"]
    assert "--top 2 shows all" in invoke(ops, saved, *asked).stdout


def test_ops_exports_sampled_stacks(saved, tmp_path):
    with pytest.raises(InputError, match="no samples"):
        invoke(ops, saved, "--flame")
    with pytest.raises(UsageError, match="cannot be combined"):
        invoke(ops, saved, "--flame", "--json")
    run = load([saved])
    rows = {
        "dur_ns": [5_000_000, 20_000_000],
        "step": [1, 2],
        "stack": ["train.py(3): main", "train.py(3): main\na.py(1): f"],
    }
    for rank in run.ranks:
        write_table(tmp_path / "sampled", "events", rank, run.events(rank))
        write_table(tmp_path / "sampled", "samples", rank, table(rows, SAMPLES))
    write_meta(tmp_path / "sampled", run.meta)
    file = tmp_path / "stacks.txt"
    said = invoke(ops, tmp_path / "sampled", "--flame", "--rank", 1, "-o", file)
    assert (said.stdout, said.stderr) == ("", f"Wrote the result to {file}\n")
    assert file.read_text() == "rank 1;main (train.py);f (a.py:1) 20000\nrank 1;main (train.py:3) 5000\n"
    with pytest.raises(UsageError, match="no rank 5"):
        invoke(ops, tmp_path / "sampled", "--flame", "--rank", 5)


def test_an_invalid_filter_is_reported_before_the_run_is_read(tmp_path):
    with pytest.raises(UsageError, match="not a regular expression"):
        invoke(ops, tmp_path / "there is no run here", "--filter", "conv(")


def test_explain_knows_every_finding_by_either_case():
    for page in explain.PAGES.values():
        said = invoke(explain, page.id.lower()).stdout
        assert said.startswith(f"{page.id} {page.title}")
        for paragraph in (page.meaning, page.evidence, page.saving, page.remedy):
            assert " ".join(paragraph.split()) in " ".join(said.split())


def test_explain_knows_a_finding_by_its_number_and_refuses_others():
    assert invoke(explain, "101").stdout.startswith("ESP101 ")
    with pytest.raises(UsageError, match="there is no finding '999'") as refused:
        invoke(explain, "999")
    assert refused.value.remedy == "`esprof explain` lists all."


def test_explain_lists_all_without_an_id():
    said = invoke(explain).stdout
    assert all(page.id in said and page.title in said for page in explain.PAGES.values())


def test_explain_in_json():
    answer = json.loads(invoke(explain, "ESP101", "--json").stdout)
    assert next(iter(answer.items())) == ("schema", "esprof.explain/1")
    assert [page["id"] for page in answer["pages"]] == ["ESP101"]


def test_status_prints_on_terminals_only(capsys):
    with common.status("Reading the run"):
        click.echo("data")
    said = capsys.readouterr()
    assert said.out == "data\n"
    assert said.err == ""


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize(("module", "option"), [(check, "--alpha"), (replay, "--max-error"), (record, "--hang")])
def test_a_limit_is_a_finite_number(module, option, number):
    answer = invoke(module, option, number, "there is no run here")
    assert answer.exit_code == 2
    assert f"Invalid value for '{option}'" in answer.stderr


@pytest.mark.parametrize("unit", ["", "s", "M"])
@pytest.mark.parametrize("option", ["--skip", "--every", "--max-log"])
def test_a_number_too_long_to_read_is_a_usage_error(option, unit):
    for digits in (400, 5_000):
        answer = invoke(record, option, digits * "9" + unit, "--", "true")
        assert answer.exit_code == 2
        assert f"Invalid value for '{option}'" in answer.stderr


@pytest.mark.parametrize(("module", "arguments"), [(record, ["--", "true"]), (merge, ["run"]), (demo, [])])
def test_a_run_is_not_written_to_stdout(module, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="folder") as caught:
        invoke(module, "-o", "-", *arguments)
    assert caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that writes a pyproject.toml with ignore rules to the current directory."""

    def written(*ids, until="2999-12-31"):
        entries = (f'[[tool.esprof.ignore]]\nid = "{id}"\nreason = "known since May"\nuntil = {until}\n' for id in ids)
        (tmp_path / "pyproject.toml").write_text("\n".join(entries))

    monkeypatch.chdir(tmp_path)
    return written


def test_findings_ignored_by_pyproject_are_listed_separately(saved, project):
    first = json.loads(invoke(diagnose, saved, "--json").stdout)["findings"][0]
    project(first["id"])
    answer = json.loads(invoke(diagnose, saved, "--json").stdout)
    assert first["id"] not in {finding["id"] for finding in answer["findings"]}
    assert answer["ignored"] == [{"finding": first, "reason": "known since May", "until": "2999-12-31"}]
    assert first["title"] not in answer["verdict"]
    assert f"{first['id']} until 2999-12-31" in invoke(diagnose, saved).stdout
    assert "known since May" in invoke(report, saved, "-o", "-").stdout
    whole = json.loads(invoke(diagnose, saved, "--json", "--no-ignore").stdout)
    assert (whole["findings"][0], whole["ignored"]) == (first, [])
    assert "known since May" not in invoke(report, saved, "-o", "-", "--no-ignore").stdout


@pytest.mark.parametrize("module", [diagnose, report])
def test_an_invalid_pyproject_is_reported_before_the_run_is_read(project, module):
    project("ESP999")
    with pytest.raises(UsageError, match="there is no finding 'ESP999'"):
        invoke(module, "there is no run here")


def test_an_invalid_pyproject_does_not_hide_the_exit_code_of_a_recorded_job(saved, project, capsys):
    project("ESP999")
    recording = Recording(run=load([saved]), exit_code=0, trouble=None)
    assert run_job.diagnosed(recording, read_ignores) is None
    assert "ESP999" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("at", "outcomes", "code", "warns"),
    [
        (100, ("recorded", "recorded"), 0, True),
        (None, ("recorded", "recorded"), 0, False),
        (412, ("recorded", "missed"), 1, False),
    ],
)
def test_a_window_at_a_step_that_had_passed_is_said_to_be_another(at, outcomes, code, warns, tmp_path, monkeypatch):
    steps = {"recorded": (412, 419), "missed": None}
    ranks = tuple(RankAnswer(rank, outcome, steps[outcome]) for rank, outcome in enumerate(outcomes))
    monkeypatch.setattr(record, "attach_to", lambda run, step: Attached(ranks))
    words = ["--attach", str(tmp_path), *(["--at", str(at)] if at else [])]
    said = CliRunner().invoke(record.command, words, catch_exceptions=False, standalone_mode=False)
    assert said.return_value == code
    assert ("had passed" in said.stderr) == warns
    assert "recorded steps 412 to 419" in said.stderr
