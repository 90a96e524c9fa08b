"""Elastic jobs of real processes that are asked to leave, wherever they are, and go on elsewhere."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from esprof.elastic.leaving.drain import EXIT_ASKED_AGAIN, EXIT_OUT_OF_TIME
from esprof.elastic.verify.diff import diff
from tests.cases.elastic_job import trained
from tests.cases.record import JOBS, environment, run

pytestmark = pytest.mark.integration

JOB = str(JOBS / "elastic_drain.py")
STEPS = 12
ONE_REQUEST_S = 1.2
"""Signals that are farther apart are two requests."""


class Ranks:
    """The job on so many processes, one of which does what `does` says; each is the first of a process group."""

    def __init__(self, count, folder, does=(), **asked):
        self._pids = folder / "pids"
        self._pids.mkdir(exist_ok=True)
        asked = {"until": STEPS, "does": does, **asked}
        command = [sys.executable, JOB, f"--pids={self._pids}", *(f"--{n}={json.dumps(v)}" for n, v in asked.items())]
        self.processes = [
            subprocess.Popen(
                command,
                env=environment(**variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for variables in _variables(count)
        ]

    def wait_for(self, rank, what):
        """Until the rank has printed a line of that kind."""
        while json.loads(self.processes[rank].stdout.readline())[1] != what:
            pass

    def end(self):
        """The exit codes, and what the ranks have printed since: the kind of line, and what it tells."""
        ended = [process.communicate(timeout=200) for process in self.processes]
        self.stderr = [stderr for _, stderr in ended]
        messages = [[json.loads(line)[1:] for line in stdout.splitlines() if line[0] == "["] for stdout, _ in ended]
        return [process.returncode for process in self.processes], messages

    def assert_none_is_left(self):
        """Of processes that the ranks have started: each group is empty, or will be in a moment."""
        for process in self.processes:
            until = time.monotonic() + 60
            while _is_there(process.pid) and time.monotonic() < until:
                time.sleep(0.05)
            assert not _is_there(process.pid)


def _variables(count):
    if count == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [shared | {"RANK": str(rank)} for rank in range(count)]


def _is_there(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def saved(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*"))


def assert_equal(log, folder):
    static = folder / "static.jsonl"
    trained(STEPS, options={"hash_log": str(static)})
    found = diff(log, static)
    assert (found.outcome, found.steps_equal, found.only_a, found.only_b) == ("equal", STEPS, 0, 0), found


def test_all_ranks_leave_before_the_same_step_and_the_job_resumes_bit_identically(tmp_path):
    log = tmp_path / "log.jsonl"
    options = {"folder": str(tmp_path / "checkpoints"), "hash_log": str(log)}

    codes, messages = Ranks(3, tmp_path, [[1, 3, ["term"]]], options=options).end()
    assert codes == [75, 0, 75]
    reasons = ["SIGTERM (rank 1)", "SIGTERM", "SIGTERM (rank 1)"]
    assert messages == [[["from", 0], ["left", 4, why, code]] for why, code in zip(reasons, codes, strict=True)]

    both, parts = [[rank, 6, ["term"]] for rank in (0, 1)], [[1, 3, 0], [2]]
    codes, messages = Ranks(2, tmp_path, both, options=options, ests=parts).end()
    assert codes == [0, 0]
    assert messages == [[["from", 4], ["left", 7, "SIGTERM", 0]]] * 2

    own = {"exit_code": 3, "follower_exit_code": 4}
    codes, messages = Ranks(2, tmp_path, [[0, 8, ["call", "maintenance"]]], options=options, drain=own).end()
    assert codes == [3, 4]
    assert messages[0] == [["from", 7], ["left", 9, "maintenance", 3]]

    assert saved(tmp_path) == ["step-00000007", "step-00000009"]
    # The same job, as another function has it.
    assert trained(STEPS, options=options | {"new_script": True}) == {"rank": 0, "first": 9}
    assert_equal(log, tmp_path)


def test_a_notice_file_drains_all_ranks(tmp_path):
    notice = str(tmp_path / "notice")
    options = {"folder": str(tmp_path / "checkpoints")}
    job = Ranks(2, tmp_path, [[0, 3, ["write", notice]]], options=options, drain={"notice": notice}, until=1_000_000)
    codes, messages = job.end()
    assert codes == [0, 0]
    assert messages[0] == messages[1]
    _, (kind, step, reason, _) = messages[0]
    assert (kind, reason) == ("left", f"notice file {notice}")
    assert saved(tmp_path) == [f"step-{step:08d}"]


def test_sigterm_in_a_slow_loader_or_in_a_collective_waits_for_the_end_of_the_step(tmp_path):
    options = {"folder": str(tmp_path / "checkpoints")}
    assert Ranks(2, tmp_path, [[0, 3, ["load"]]], options=options).end()[0] == [0, 75]
    assert saved(tmp_path) == ["step-00000004"]
    codes, messages = Ranks(2, tmp_path, [[1, 5, ["term rank", 0]]], options=options).end()
    assert codes == [0, 75]
    assert messages[0][1][:3] == ["left", 6, "SIGTERM"]


def test_a_second_sigterm_ends_a_rank_at_once_in_a_collective_or_in_c_code(tmp_path):
    options = {"folder": str(tmp_path / "checkpoints"), "every": 2}
    job = Ranks(2, tmp_path, [[1, 5, ["block"]]], options=options)
    job.wait_for(1, "block")
    for _ in range(2):
        for process in job.processes:
            process.terminate()
        time.sleep(ONE_REQUEST_S)
    assert job.end()[0] == [EXIT_ASKED_AGAIN] * 2
    for rank, stderr in enumerate(job.stderr):
        assert f"rank {rank} was asked to leave a second time; the last checkpoint is from before step " in stderr


def test_a_stuck_rank_and_its_loaders_end_in_time(tmp_path):
    options = {"folder": str(tmp_path / "checkpoints"), "num_workers": 2}
    job = Ranks(1, tmp_path, [[0, 3, ["sleep"]]], options=options, drain={"within_s": 1.0})
    assert job.end()[0] == [EXIT_OUT_OF_TIME]
    assert "rank 0 was asked to leave 1 s ago (SIGTERM), and has not come to save" in job.stderr[0]
    assert "there is no checkpoint" in job.stderr[0]
    job.assert_none_is_left()


def test_a_rank_that_saved_but_does_not_exit_is_ended_in_time_with_its_own_code(tmp_path):
    options, drain = {"folder": str(tmp_path / "checkpoints")}, {"within_s": 4.0, "exit_code": 3}
    job = Ranks(1, tmp_path, [[0, 3, ["term"]]], options=options, drain=drain, lingers=600)
    assert job.end() == ([3], [[["from", 0], ["left", 4, "SIGTERM", 3]]])
    assert "has saved, and did not end" in job.stderr[0]
    assert saved(tmp_path) == ["step-00000004"]


def test_loaders_outlive_a_sigterm_to_all_processes_until_the_job_has_left(tmp_path):
    job = Ranks(1, tmp_path, [[0, 3, ["say"]]], options={"num_workers": 2})
    job.wait_for(0, "say")
    os.killpg(job.processes[0].pid, signal.SIGTERM)
    job.processes[0].stdin.write("\n")
    codes, messages = job.end()
    assert (codes, messages) == ([0], [[["left", 4, "SIGTERM", 0]]])
    assert "the job leaves without a checkpoint" in job.stderr[0]
    job.assert_none_is_left()


def test_torchrun_restarts_a_job_after_a_rank_was_drained(tmp_path):
    log = tmp_path / "log.jsonl"
    options = {"folder": str(tmp_path / "checkpoints"), "hash_log": str(log)}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    asked = {"until": STEPS, "does": [[1, 3, ["term"]]], "options": options}
    (tmp_path / "pids").mkdir()
    command = [sys.executable, *launcher, JOB, f"--pids={tmp_path / 'pids'}"]
    done = run(
        [*command, *(f"--{name}={json.dumps(value)}" for name, value in asked.items())],
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    assert done.code == 0, done.stderr
    messages = [tuple(json.loads(line)[:3]) for line in done.stdout.splitlines()]
    assert set(messages) == {
        (rank, *what) for rank in (0, 1) for what in (("from", 0), ("left", 4), ("from", 4), ("ended", 12))
    }
    assert_equal(log, tmp_path)
