"""Workers that nothing of esprof starts: by the variables that it prints, or hands to whoever starts them."""

import os
import shlex
import subprocess
import sys

import pytest

import esprof
from esprof.core.errors import OutputError
from tests.cases.record import ESPROF, JOBS, environment, run

pytestmark = pytest.mark.integration

WORKER = [sys.executable, str(JOBS / "train.py"), "--steps", "20"]
WITH_RECORD = """
import torch
import torch.distributed as dist
import esprof

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with esprof.record():
    for _ in range(20):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
dist.destroy_process_group()
"""


def printed(*arguments: str) -> dict[str, str]:
    """The variables that a shell would set."""
    answer = run([*ESPROF, "record", "--print-env", *arguments])
    assert answer.code == 0, answer.stderr
    lines = [line.removeprefix("export ") for line in answer.stdout.splitlines()]
    return dict(shlex.split(line)[0].split("=", 1) for line in lines)


def start_two(variables: dict[str, str], command: list[str]) -> list[int]:
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    workers = [
        subprocess.Popen(command, env=environment(**variables, **meeting, RANK=str(rank)), stdout=subprocess.DEVNULL)
        for rank in (0, 1)
    ]
    return [worker.wait(timeout=200) for worker in workers]


def test_workers_started_with_the_variables_record_one_run(tmp_path):
    variables = printed("-o", str(tmp_path / "a run"), "--skip", "3", "--steps", "5")
    assert start_two(variables, WORKER) == [0, 0]
    found = esprof.load(tmp_path / "a run")
    assert found.ranks == [0, 1]
    assert [window.first for window in found.rank(1).windows] == [5, 11]
    assert not (tmp_path / "a run" / "raw").exists()


def test_a_block_in_the_script_records_into_the_run_of_the_variable(tmp_path):
    variables = esprof.environment(tmp_path / "run", skip=3, steps=5)
    del variables["PYTHONPATH"]  # Where only the one variable is handed on.
    assert start_two(variables, [sys.executable, "-c", WITH_RECORD]) == [0, 0]
    assert esprof.load(tmp_path / "run").ranks == [0, 1]


def test_a_script_that_starts_again_records_into_another_run(tmp_path):
    script = """
import esprof, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with esprof.record("run", skip=1, warmup=0, steps=2, stack_steps=0):
    for _ in range(6):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""
    for folder in ("run", "run-2"):
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert ("run is a Run already: recording into run-2" in done.stderr) == (folder == "run-2")
        assert esprof.load(tmp_path / folder).ranks == [0]


def test_an_existing_run_is_not_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(OutputError, match="already exists"):
        esprof.environment(tmp_path / "run")
    assert os.listdir(tmp_path / "run") == ["mine"]
    assert run([*ESPROF, "record", "--print-env", "-o", str(tmp_path / "run")]).code == 1
    assert run([*ESPROF, "record", "--print-env", "-o", str(tmp_path / "new"), "--", "python"]).code == 2
    assert not (tmp_path / "new").exists()
