"""Elastic jobs of real processes that stop, are killed, and go on elsewhere, against one that never stopped."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from esprof.elastic.proof.diff import diff
from esprof.elastic.proof.steplog import StepLog
from tests.cases.record import JOBS, environment, run

pytestmark = pytest.mark.integration

JOB = str(JOBS / "elastic_steps.py")
STEPS = 12


def alone(**asked):
    return [sys.executable, JOB, *_flags(asked)]


def processes(count, *, restarts=0, **asked):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    return [sys.executable, *launcher, f"--max-restarts={restarts}", JOB, *_flags(asked)]


def _flags(asked):
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in asked.items()}
    return [
        word
        for name, text in texts.items()
        for word in ([f"--{name.replace('_', '-')}"] + ([text] if text != "true" else []))
    ]


def said(command):
    """What each rank printed, by rank."""
    # Without this torchrun gives restarted workers the store of those before, with the addresses of the dead.
    done = run(command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.code == 0, done.stderr
    return sorted(lines, key=lambda line: line["rank"])


def static_log(path, **options):
    """The log of one process that trains all ESTs without a stop."""
    said(alone(until=STEPS, options={"hash_log": str(path), **options}))
    return path


def assert_equal(log, static):
    found = diff(log, static)
    assert (found.outcome, found.steps_equal, found.only_a, found.only_b) == ("equal", STEPS, 0, 0), found


def test_saved_by_four_processes_it_goes_on_on_two_and_then_on_three(tmp_path):
    log, codec = tmp_path / "elastic.jsonl", {"codec": "topk:0.2"}
    options = {"checkpoint": str(tmp_path / "checkpoints"), "hash_log": str(log), **codec}
    stages = [(4, 4, [[3], [0], [2], [1]]), (2, 7, [[0, 1, 3], [2]]), (3, STEPS, [[1], [], [0, 2, 3]])]
    first = 0
    for world, until, ests in stages:
        answers = said(processes(world, until=until, ests=ests, options=options, save=True))
        assert answers == [{"rank": rank, "first": first} for rank in range(world)]
        first = until
    assert_equal(log, static_log(tmp_path / "static.jsonl", **codec))
    assert {line.assignment for line in StepLog.open(log).steps()} == {tuple(map(tuple, ests)) for _, _, ests in stages}


def test_torchrun_restarts_a_job_one_of_whose_ranks_was_killed(tmp_path):
    options = {"checkpoint": str(tmp_path / "checkpoints"), "checkpoint_every": 2}
    die_at = random.randrange(3, STEPS)
    log = tmp_path / "killed.jsonl"
    killed = {"until": STEPS, "ests": [[0, 3], [1, 2]], "options": options | {"hash_log": str(log)}}
    answers = said(processes(2, restarts=1, die_at=die_at, **killed))
    assert answers[0] == {"rank": 0, "first": answers[1]["first"]}
    assert die_at - 4 < answers[0]["first"] <= die_at
    assert_equal(log, static_log(tmp_path / "static.jsonl"))


def test_killed_from_outside_at_any_time_it_goes_on_as_if_nothing_had_happened(tmp_path):
    log = tmp_path / "killed.jsonl"
    options = {"checkpoint": str(tmp_path / "checkpoints"), "checkpoint_every": 1, "hash_log": str(log)}
    for _ in range(2):
        job = subprocess.Popen(alone(until=100_000, options=options), env=environment(), stderr=subprocess.DEVNULL)
        before = _written(log)
        while _written(log) < before + 3 and job.poll() is None:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.05))
        job.send_signal(signal.SIGKILL)
        assert job.wait(60) == -signal.SIGKILL
    steps = _written(log) + 5
    (answer,) = said(alone(until=steps, options=options))
    assert 0 < answer["first"] < steps
    static = tmp_path / "static.jsonl"
    said(alone(until=steps, options={"hash_log": str(static)}))
    found = diff(log, static)
    assert (found.outcome, found.steps_equal) == ("equal", steps), found


def _written(log):
    """The step of the last whole line."""
    whole = (
        [line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")] if log.exists() else []
    )
    return json.loads(whole[-1])["step"] if len(whole) > 1 else 0


def test_ranks_with_unlike_threads_are_refused_on_all_of_them(tmp_path):
    answers = said(processes(2, until=1, threads={"1": 2}))
    assert [answer["rank"] for answer in answers] == [0, 1]
    for answer in answers:
        assert "machine.threads is 1 on rank 0 and 2 on rank 1" in answer["error"]


def test_a_spoiled_checkpoint_is_told_on_all_ranks(tmp_path):
    options = {"checkpoint": str(tmp_path)}
    said(alone(until=1, options=options, save=True))
    file = tmp_path / "step-00000001" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    for answer in said(processes(2, until=2, options=options)):
        assert "__0_0.distcp: has" in answer["error"]
        assert "start anew" in answer["error"]
