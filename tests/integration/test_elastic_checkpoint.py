"""Elastic jobs of real processes that stop, are killed, and go on elsewhere, against one that never stopped."""

import json
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from esprof.elastic.checkpoint.checkpoint import in_folder
from esprof.elastic.verify.diff import diff
from esprof.elastic.verify.steplog import StepLog
from tests.cases.elastic import on_processes
from tests.cases.elastic_job import averaged, holding, trained
from tests.cases.record import JOBS, environment, run

pytestmark = pytest.mark.integration

JOB = str(JOBS / "elastic_steps.py")
STEPS = 12


def alone(until, options):
    """The command of a job in a process of its own."""
    return [sys.executable, JOB, f"--until={until}", f"--options={json.dumps(options)}"]


def on_ranks(count, *asked, **more):
    """What became of the job on each rank of so many processes."""
    (answers,) = on_processes(count, partial(trained, **more), [asked])
    return answers


def static_log(path, until=STEPS, **options):
    """The log of one process that trains all ESTs without a stop."""
    trained(until, options={"hash_log": str(path), **options})
    return path


def assert_equal(log, static):
    found = diff(log, static)
    assert (found.outcome, found.steps_equal, found.only_a, found.only_b) == ("equal", STEPS, 0, 0), found


@pytest.mark.compat("elastic")
def test_a_checkpoint_of_four_processes_resumes_on_two_and_then_on_three(tmp_path):
    log, codec = tmp_path / "elastic.jsonl", {"codec": "topk:0.2"}
    options = {"folder": str(tmp_path / "checkpoints"), "hash_log": str(log), **codec}
    stages = [(4, 4, [[3], [0], [2], [1]]), (2, 7, [[0, 1, 3], [2]]), (3, STEPS, [[1], [], [0, 2, 3]])]
    first = 0
    for world, until, ests in stages:
        answers = on_ranks(world, until, ests, options, save=True)
        assert answers == [{"rank": rank, "first": first} for rank in range(world)]
        first = until
    assert_equal(log, static_log(tmp_path / "static.jsonl", **codec))
    assert {line.assignment for line in StepLog.open(log).steps()} == {tuple(map(tuple, ests)) for _, _, ests in stages}


def test_state_outside_of_the_model_resumes_on_another_number_of_processes(tmp_path):
    whole = holding(STEPS, None)
    first = on_processes(2, holding, [(STEPS // 2, str(tmp_path), [[3, 0], [1, 2]])])[0]
    assert first == [whole[: STEPS // 2]] * 2
    assert holding(STEPS, str(tmp_path)) == whole[STEPS // 2 :]


def test_torchrun_restarts_a_job_after_a_rank_was_killed(tmp_path):
    options = {"folder": str(tmp_path / "checkpoints"), "every": 2}
    die_at = random.randrange(3, STEPS)
    log = tmp_path / "killed.jsonl"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    asked = {"until": STEPS, "die-at": die_at, "ests": [[0, 3], [1, 2]], "options": options | {"hash_log": str(log)}}
    # Without this torchrun gives restarted workers the store of those before, with the addresses of the dead.
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = run([sys.executable, *launcher, JOB, *(f"--{n}={json.dumps(v)}" for n, v in asked.items())], **variables)
    assert done.code == 0, done.stderr
    answers = sorted(map(json.loads, done.stdout.splitlines()), key=lambda answer: answer["rank"])
    assert answers[0] == {"rank": 0, "first": answers[1]["first"]}
    assert die_at - 4 < answers[0]["first"] <= die_at
    assert_equal(log, static_log(tmp_path / "static.jsonl"))


def test_a_job_killed_at_any_time_resumes_bit_identically(tmp_path):
    log = tmp_path / "killed.jsonl"
    options = {"folder": str(tmp_path / "checkpoints"), "every": 1, "hash_log": str(log)}
    for _ in range(2):
        job = subprocess.Popen(alone(100_000, options), env=environment(), stderr=subprocess.DEVNULL)
        before = _written(log)
        while _written(log) < before + 3 and job.poll() is None:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.05))
        job.send_signal(signal.SIGKILL)
        assert job.wait(60) == -signal.SIGKILL
    steps = _written(log) + 5
    assert 0 < trained(steps, options=options)["first"] < steps
    found = diff(log, static_log(tmp_path / "static.jsonl", steps))
    assert (found.outcome, found.steps_equal) == ("equal", steps), found


def _written(log):
    """The step of the last whole line."""
    whole = (
        [line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")] if log.exists() else []
    )
    return json.loads(whole[-1])["step"] if len(whole) > 1 else 0


def test_no_checkpoint_is_mixed_from_ranks_that_differ(tmp_path):
    log = tmp_path / "elastic.jsonl"
    options = {"folder": str(tmp_path / "checkpoints"), "every": 1, "hash_log": str(log)}
    answers = on_ranks(2, STEPS, [[0, 3], [1, 2]], options, edited_at=5)
    assert all("rank 0" in answer["error"] and "rank 1" in answer["error"] for answer in answers), answers
    assert [path.name for path in in_folder(Path(options["folder"]))] == [
        "step-00000002",  # The last one that is proven.
        "step-00000003",
        "step-00000004",
    ]
    assert trained(STEPS, options=options) == {"rank": 0, "first": 4}
    assert_equal(log, static_log(tmp_path / "static.jsonl"))


def test_a_save_of_ranks_that_differ_is_refused_on_all(tmp_path):
    answers = on_ranks(2, 3, None, {"folder": str(tmp_path)}, edited_at=3, save=True)
    assert all("before step 3.model/head.weight is" in answer["error"] for answer in answers), answers
    assert not in_folder(tmp_path)


def test_different_numbers_of_threads_are_refused_on_all_ranks(tmp_path):
    answers = on_ranks(2, 1, threads={1: 2})
    assert [answer["rank"] for answer in answers] == [0, 1]
    for answer in answers:
        assert "machine.threads is 1 on rank 0 and 2 on rank 1" in answer["error"]


def test_a_damaged_checkpoint_is_reported_on_all_ranks(tmp_path):
    options = {"folder": str(tmp_path)}
    trained(1, options=options, save=True)
    file = tmp_path / "step-00000001" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    for answer in on_ranks(2, 2, None, options):
        assert "__0_0.distcp: has" in answer["error"]
        assert "move the checkpoints" in answer["error"]


def test_no_rank_resumes_from_a_checkpoint_that_one_rank_finds_damaged(tmp_path):
    options = {"folder": str(tmp_path / "checkpoints"), "hash_log": str(tmp_path / "log.jsonl")}
    trained(3, options=options, save=True)
    trained(5, options=options, save=True)
    file = tmp_path / "checkpoints" / "step-00000005" / "__0_0.distcp"  # The second file, which rank 1 looks at.
    file.write_bytes(file.read_bytes()[:-1])
    answers = on_ranks(2, STEPS, None, options)
    assert answers == [{"rank": rank, "first": 3} for rank in (0, 1)]
    assert_equal(tmp_path / "log.jsonl", static_log(tmp_path / "static.jsonl"))


def test_an_average_of_the_weights_resumes_on_other_processes(tmp_path):
    ((alone,),) = on_processes(1, averaged, [(7, tmp_path / "alone")])
    ((first, second),) = on_processes(2, averaged, [(4, tmp_path / "moved")])
    assert first == second != alone
    (goes_on,) = on_processes(3, averaged, [(7, tmp_path / "moved")])
    assert goes_on == [alone] * 3


def test_state_changed_by_one_rank_only_is_in_no_checkpoint(tmp_path):
    (answers,) = on_processes(2, averaged, [(2, tmp_path, 1)])
    for answer in answers:
        assert "before step 2.state.average is " in answer
        assert "on rank 0 and" in answer
    assert not list(tmp_path.iterdir())
