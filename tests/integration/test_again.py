"""`esprof again` and `validate` on real Runs: the command runs once more as it was recorded; a lost file is found."""

import contextlib
import json
import shutil
import sys

import pytest

from esprof import load
from tests.cases import kineto, step_runs
from tests.cases.command_line import esprof
from tests.cases.record import ESPROF, record, run

pytestmark = pytest.mark.integration

JOB = """
import os, sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("threads", os.environ.get("OMP_NUM_THREADS"), "nccl", os.environ.get("NCCL_DEBUG"), sys.argv[1:])
sys.exit(5)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a Run, `run`, of `train.py` in its folder `work`."""
    folder = tmp_path_factory.mktemp("again")
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(JOB)
    with contextlib.chdir(folder / "work"):
        ended = record(folder / "run", [sys.executable, "train.py", "--lr=1"], skip=3, steps=4, stack_steps=1)
    assert ended.code == 5
    return folder


@pytest.mark.promise
def test_a_recorded_command_runs_again_as_it_was_recorded(folder, monkeypatch):
    monkeypatch.chdir(folder)
    again = run([*ESPROF, "again", "run", "--json", "-q"], OMP_NUM_THREADS="2", NCCL_DEBUG="INFO")
    assert again.code == 5
    assert "threads 1 nccl None ['--lr=1']" in again.stderr
    assert "OMP_NUM_THREADS is 1" in again.stderr
    assert "NCCL_DEBUG is unset" in again.stderr
    answer = json.loads(again.stdout)
    assert next(iter(answer.items())) == ("schema", "esprof.again/1")
    assert answer["exit_code"] == 5
    assert answer["comparison"]["schema"].startswith("esprof.compare/")
    assert answer["diagnosis"]["schema"].startswith("esprof.diagnose/")
    old, new = load(folder / "run"), load(folder / "run-again")
    assert new.meta.command == old.meta.command
    assert new.meta.relaunch == old.meta.relaunch
    assert new.rank(0).windows == old.rank(0).windows


@pytest.mark.promise
def test_a_recorded_run_is_whole_until_one_of_its_files_is_lost(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    whole = esprof("validate", "run", "--json")
    answer = json.loads(whole.stdout)
    assert (whole.returncode, answer["whole"], answer["replay"]["answered"]) == (0, True, True)
    parts = {name for name, part in answer["ranks"][0]["parts"].items() if part["state"] == "present"}
    assert parts >= {"events", "steps", "flight"}
    (tmp_path / "run" / "steps" / "rank-00000.parquet").write_bytes(b"PAR1")
    assert esprof("validate", "run").returncode == 3


def test_what_was_not_recorded_by_record_is_refused(tmp_path):
    kineto.write_job(tmp_path / "traces")
    for source in (tmp_path / "traces", step_runs.write(tmp_path / "run", step_runs.step_table([1, 1]))):
        refused = esprof("again", source)
        assert refused.returncode == 1
        assert "does not tell how its command was started" in refused.stderr
    assert not (tmp_path / "run-again").exists()


def test_a_command_without_its_secret_is_refused(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "run", [sys.executable, "train.py", "--api-key=abc"], skip=3, steps=4, stack_steps=0)
    refused = esprof("again", tmp_path / "run")
    assert refused.returncode == 1
    assert "a secret was taken out of its command" in refused.stderr


def test_a_folder_that_is_gone_is_named(folder):
    (folder / "work").rename(folder / "elsewhere")
    try:
        refused = esprof("again", folder / "run")
    finally:
        (folder / "elsewhere").rename(folder / "work")
    assert refused.returncode == 1
    assert str(folder / "work") in refused.stderr
    assert f"esprof record -o NEW -- {sys.executable} train.py" in refused.stderr
