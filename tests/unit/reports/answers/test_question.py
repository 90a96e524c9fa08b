"""What an answer depends on: each verb answers twice alike, and anew after any change."""

import os
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from esprof.core.errors import InputError
from esprof.replay.whatif import pricing
from esprof.reports.answers import question, store
from esprof.reports.commands import check, common, compare, diagnose, ops, replay, report, validate
from tests.cases.graph import gloo, op, run_of, step
from tests.cases.run_directory import write_run

MS = 1_000.0


def rows(slow_ms):
    """Four steps of 50 ms."""
    found = []
    for begin in (number * 50 * MS for number in range(4)):
        arrive = begin + (30 + slow_ms) * MS
        found += [
            step(round(begin / 50 / MS), begin, begin + 50 * MS),
            op("aten::linear", begin, 10 * MS),
            op("autograd::engine::evaluate_function: AddmmBackward0", begin + (10 + slow_ms) * MS, 20 * MS),
            *gloo(arrive - 5, arrive, begin + 44 * MS),
        ]
    return found


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A Run of two ranks; the current folder is beside it."""
    made = run_of({0: rows(0), 1: rows(10)})
    path = tmp_path / "run"
    write_run(path, made.meta, {("events", rank): made.events(rank) for rank in made.ranks})
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def computed(monkeypatch):
    """How often a run was read to answer."""
    counted = []
    monkeypatch.setattr(common, "open_run", opened := counting(common.open_run, counted))
    for module in (check, compare, diagnose, ops, replay, report, validate):
        monkeypatch.setattr(module, "open_run", opened)
    return counted


def counting(function, calls):
    def counted(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return counted


def ask(module, *arguments):
    """(exit code, stdout, stderr) of a verb."""
    done = CliRunner().invoke(module.command, list(map(str, arguments)), catch_exceptions=False, standalone_mode=False)
    return done.return_value, done.stdout, done.stderr


VERBS = [
    (diagnose, ["run"]),
    (ops, ["run", "--by-shape"]),
    (validate, ["run"]),
    (replay, ["run", "--what-if", "cpu=2x"]),
    (compare, ["run", "run"]),
    (check, ["run", "--baseline", "run"]),
    (compare, ["run", "run", "--format", "markdown"]),
]


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(("module", "arguments"), VERBS)
def test_a_second_answer_equals_the_first_and_reads_nothing(run, computed, module, arguments, form):
    if "--format" in arguments and form:
        return
    first = ask(module, *arguments, *form)
    assert len(computed) == len([one for one in arguments if one == "run"])
    assert ask(module, *arguments, *form) == first
    assert len(computed) == len([one for one in arguments if one == "run"])
    assert first[1]


def test_a_second_page_equals_the_first(run, computed):
    assert ask(report, "run", "-o", "first.html")[2] == "Wrote the page to first.html\n"
    _, said, _ = ask(report, "run", "--json", "-o", "second.html")
    assert len(computed) == 1
    assert Path("first.html").read_bytes() == Path("second.html").read_bytes()
    assert f'"bytes": {Path("second.html").stat().st_size}' in said
    assert '"path": "second.html"' in said


def test_a_stored_answer_is_written_to_a_file_as_a_new_one(run, computed):
    _, text, _ = ask(diagnose, "run")
    ask(diagnose, "run", "-o", "answer.txt")
    assert len(computed) == 1
    assert Path("answer.txt").read_text() == text


def test_warnings_and_exit_code_are_repeated(run, computed):
    (run / "events" / "rank-00001.parquet").unlink()
    first = ask(validate, "run")
    assert first[0] == 3
    assert "rank 1" in first[1]
    assert ask(validate, "run") == first
    assert len(computed) == 1


def test_another_width_is_another_answer(run, computed, monkeypatch):
    ask(diagnose, "run")
    monkeypatch.setenv("COLUMNS", "60")
    ask(diagnose, "run")
    assert len(computed) == 2


@pytest.mark.parametrize("options", [["--max-error", "5"], ["--window", "1"], ["--json"]])
def test_another_option_is_another_answer(run, computed, options):
    ask(diagnose, "run")
    ask(diagnose, "run", *options)
    assert len(computed) == 2


def test_a_changed_byte_gives_a_new_answer(run, computed):
    ask(diagnose, "run")
    meta = run / "run.json"
    meta.write_bytes(meta.read_bytes() + b" ")
    ask(diagnose, "run")
    assert len(computed) == 2


def test_a_changed_ignore_list_and_a_new_day_give_new_answers(run, computed, monkeypatch):
    until = date.today() + timedelta(days=3)
    entry = f'[[tool.esprof.ignore]]\nid = "ESP301"\nreason = "known"\nuntil = {until}\n'
    for number, content in enumerate(("", entry, entry.replace("301", "202")), 1):
        Path("pyproject.toml").write_text(content)
        ask(diagnose, "run")
        ask(diagnose, "run")
        assert len(computed) == number


def test_other_code_gives_a_new_answer(run, computed, monkeypatch):
    ask(diagnose, "run")
    monkeypatch.setattr(question, "code_stamp", lambda: "other")
    ask(diagnose, "run")
    assert len(computed) == 2


def test_the_stamp_of_the_code_sees_all_files(tmp_path, monkeypatch):
    (tmp_path / "rules").mkdir()
    (tmp_path / "package").symlink_to(tmp_path / "rules")
    monkeypatch.setattr(question, "_PACKAGE", tmp_path)
    stamps = [question.code_stamp()]
    (tmp_path / "rules" / "rule.py").write_text("x = 1")
    stamps.append(question.code_stamp())
    os.utime(tmp_path / "rules" / "rule.py", ns=(0, 0))
    stamps.append(question.code_stamp())
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "rule.pyc").touch()
    assert len(set(stamps)) == 3
    assert question.code_stamp() == stamps[-1]


def test_a_setting_of_the_environment_gives_a_new_answer(run, computed, monkeypatch):
    ask(diagnose, "run")
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", str(1 << 30))
    ask(diagnose, "run")
    assert len(computed) == 2


def test_errors_are_not_stored(run, computed):
    for rank in (0, 1):
        (run / "events" / f"rank-0000{rank}.parquet").unlink()
    for _ in range(2):
        with pytest.raises(InputError):
            ask(diagnose, "run")
    assert len(computed) == 2


def test_an_answer_about_files_that_changed_meanwhile_is_not_stored(run, monkeypatch):
    written = []
    monkeypatch.setattr(store.Store, "put", lambda *answer: written.append(answer))

    def compute():
        (run / "run.json").touch()
        return store.Kept("of the old files")

    assert question.remembered("?", ["run"], compute).text == "of the old files"
    assert not written


def test_an_answer_that_is_not_final_is_not_stored(run):
    answers = iter([store.Kept("without rank 3", is_final=False), store.Kept("of all ranks"), store.Kept("of nobody")])
    found = [question.remembered("?", ["run"], lambda: next(answers)).text for _ in range(3)]
    assert found == ["without rank 3", "of all ranks", "of all ranks"]


def test_without_a_folder_to_store_in_each_answer_is_computed(run, computed, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert ask(diagnose, "run") == ask(diagnose, "run")
    assert len(computed) == 2


def test_nothing_is_written_into_the_run(run):
    before = sorted(run.rglob("*"))
    ask(diagnose, "run")
    assert sorted(run.rglob("*")) == before


def test_the_default_of_max_error_is_that_of_replay():
    assert common.MAX_ERROR_PCT == pricing.MAX_ERROR_PCT


def test_a_check_against_another_baseline_is_computed(run, computed):
    ask(check, "run", "--save-baseline", "base.json")
    first = ask(check, "run", "--baseline", "base.json")
    assert ask(check, "run", "--baseline", "base.json") == first
    assert len(computed) == 2
    ask(check, "run", "--baseline", "base.json", "--format", "junit")
    ask(check, "run", "--save-baseline", "base.json", "--append")
    ask(check, "run", "--baseline", "base.json")
    assert len(computed) == 5


def test_the_form_that_the_name_of_a_file_asks_for_counts(run, computed):
    for name in ("changes.html", "changes.md", "changes.json", "changes.txt"):
        ask(compare, "run", "run", "-o", name)
    assert len({Path(name).read_bytes() for name in ("changes.html", "changes.md", "changes.json", "changes.txt")}) == 4
    assert len(computed) == 8
