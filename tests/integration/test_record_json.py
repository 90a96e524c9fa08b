"""`esprof record --json`: the diagnosis goes where nothing of the job's goes, whatever the job prints."""

import json
import sys
from functools import cache

import pytest

from tests.cases.record import job, record, run

pytestmark = pytest.mark.integration

JOBS = ["talks", "closes_stdout"]


@cache
def said(what):
    """What the job prints where nothing records."""
    return run(job("odd_guests.py", what)).stdout


@pytest.mark.parametrize("what", JOBS)
def test_stdout_is_the_diagnosis_alone_and_the_job_prints_to_stderr(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = record(tmp_path / "run", job("odd_guests.py", what), json=True, stack_steps=0)
    assert ended.code == 0
    assert json.loads(ended.stdout)["schema"] == "esprof.diagnose/2"
    assert said(what) in ended.stderr


@pytest.mark.parametrize("what", JOBS)
def test_with_a_file_for_the_diagnosis_stdout_is_the_jobs(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = record(tmp_path / "run", job("odd_guests.py", what), json="deep/answer.json", stack_steps=0)
    assert (ended.code, ended.stdout) == (0, said(what))
    assert json.loads((tmp_path / "deep" / "answer.json").read_text())["schema"] == "esprof.diagnose/2"
    assert "answer.json" not in ended.stderr


def test_a_file_that_went_bad_while_the_job_ran_does_not_hide_how_it_ended(tmp_path):
    blocks = ["sh", "-c", '"$@"; touch "$0"; exit 7', str(tmp_path / "deep"), *job("train.py")]
    ended = record(tmp_path / "run", blocks, json=tmp_path / "deep" / "answer.json", stack_steps=0)
    assert ended.code == 7
    assert f"{tmp_path / 'deep' / 'answer.json'}: cannot be written: " in ended.stderr
    assert ended.run.ranks == [0]


@pytest.mark.parametrize(
    ("file", "code", "reason"), [("taken", 1, "already exists"), (sys.executable, 2, "which is a command")]
)
def test_a_file_that_is_there_or_is_a_command_is_refused_before_the_job_starts(
    file, code, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    ended = record(tmp_path / "run", ["touch", "started"], json=file)
    assert ended.code == code
    assert reason in ended.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken").read_text() == "mine"
