"""One training script for stock PyTorch and for the elastic runtime, and what an elastic job tells of itself."""

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import esprof
from esprof.replay.building.build import build_counted
from tests.cases import command_line, record

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.integration


def started(script, processes, *arguments):
    return record.ranks(processes, EXAMPLES / script, *arguments)


def output(command):
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=variables)
    assert done.returncode == 0, done.stderr
    return record.without_gloos_words(done.stdout)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(output, Run) of four logical workers, one of which has a process of its own."""
    path = tmp_path_factory.mktemp("job") / "run"
    printed = output(started("elastic.py", 3, "--workers", 4, "--epochs", 1, "--telemetry", path))
    return printed, esprof.load(path)


def test_a_script_is_made_elastic_by_few_lines():
    texts = ((EXAMPLES / name).read_text().splitlines() for name in ("ddp.py", "elastic.py"))
    changed = [line for line in difflib.ndiff(*texts) if line.startswith("+ ")]
    assert len(changed) < 20


def test_elastic_training_matches_ddp():
    stock = output(started("ddp.py", 2)).splitlines()
    elastic = output(started("elastic.py", 1, "--workers", 2)).splitlines()
    losses = [[float(line.split()[-1]) for line in lines] for lines in (stock, elastic)]
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)
    assert len(losses[0]) == 3


@pytest.mark.compat("elastic")
def test_the_output_does_not_depend_on_the_processes(job):
    assert output(started("elastic.py", 1, "--workers", 4, "--epochs", 1)) == job[0]


def test_telemetry_names_the_ests_of_each_rank(job):
    run = job[1]
    ests = [set(run.events(rank).ints("est").tolist()) - {-1} for rank in run.ranks]
    assert ests == [{0, 1}, {2}, {3}]
    assert not run.warnings


def test_every_collective_of_the_telemetry_is_matched_on_all_ranks(job):
    built = build_counted(job[1])
    assert not any(built.unmatched.values())
    assert (built.dfg.collective >= 0).any()


@pytest.mark.parametrize("verb", ["replay", "diagnose"])
def test_commands_read_telemetry_like_any_run(job, verb):
    printed = command_line.esprof(verb, job[1].path)
    assert printed.returncode == 0, printed.stderr
    assert "steady-state steps" in printed.stdout


@pytest.mark.compat("elastic")
def test_a_recorded_window_names_the_ests(tmp_path):
    command = started("elastic.py", 2, "--workers", 4)
    ended = record.record(tmp_path / "run", command, skip=2, warmup=1, steps=3, stack_steps=0)
    assert ended.code == 0, ended.stderr
    for rank, ests in ((0, {0, 1}), (1, {2, 3})):
        operations = ended.run.events(rank).arrow.to_pylist()
        assert {row["est"] for row in operations if "onvolution" in row["name"]} == ests
        assert {row["est"] for row in operations if row["kind"] == "collective"} == {None}


def test_a_preempted_job_prints_the_same_as_an_uninterrupted_one(tmp_path):
    scheduler = EXAMPLES / "preemption" / "scheduler.py"
    options = ["--processes", "2", "1", "--slice", "0.2", "--pause", "0.2", f"--folder={tmp_path / 'preempted'}"]
    printed = output([sys.executable, str(scheduler), *options])
    lines, notes = printed.splitlines(), ("on ", "leaves before step ")
    first, left, second = [line for line in lines if line.startswith(notes)]
    assert (first, second) == ("on 2 processes", "on 1 processes")
    assert left.endswith(": SIGTERM")
    alone = output(started("preemption/train.py", 1, "--folder", tmp_path / "alone"))
    assert [line for line in lines if not line.startswith(notes)] == alone.splitlines()


@pytest.mark.parametrize(("code", "queued"), [(75, ["requeue 7"]), (0, []), (1, [])])
def test_the_batch_script_requeues_a_drained_job(code, queued, tmp_path):
    commands = {"srun": f"exit {code}", "scontrol": f"[ $1 = show ] && echo node || echo $* >> {tmp_path / 'queued'}"}
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "queued").touch()
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}
    done = subprocess.run(["bash", EXAMPLES / "preemption" / "job.sbatch"], env=os.environ | variables)
    assert done.returncode == code
    assert (tmp_path / "queued").read_text().splitlines() == queued
