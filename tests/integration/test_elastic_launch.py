"""Jobs of real processes whose number changes: by one controller, and by hosts that join and leave through torchrun."""

import os
import signal
import socket
import subprocess
import time

import pytest

from esprof.core.plan import write_plan
from esprof.elastic.launch.messages import LAUNCH_LOG, read_state
from esprof.elastic.verify.diff import diff
from esprof.run.logs import HISTORY
from tests.cases import record
from tests.cases.command_line import esprof
from tests.cases.elastic_job import small_trainer
from tests.cases.plans import plan_of

pytestmark = pytest.mark.integration

JOB = record.JOBS / "launched.py"
_WAITS_S = 120


def launched(folder, *options, name="launch"):
    words = [*record.ESPROF, "elastic", "launch", "--folder", folder / name, *options, "--", JOB, folder]
    return subprocess.Popen(list(map(str, words)), env=record.environment(), stderr=subprocess.PIPE, text=True)


def wait_for(process, what):
    """What `what()` gives once it is something."""
    until = time.monotonic() + _WAITS_S
    while not (found := what()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)
    return found


def events(folder, what):
    return [event for event in HISTORY.read(folder / "run") if event.what == what]


def assert_equal_to_one_process(folder):
    """The hashes of all steps that were made are those of a job that was never changed."""
    last = len((folder / "log.jsonl").read_text().splitlines())
    static = small_trainer(hash_log=folder / "static.jsonl")
    while static.next_step < last:
        static.step()
    static.close()
    found = diff(folder / "log.jsonl", folder / "static.jsonl")
    assert found.outcome == "equal", found
    assert found.steps_equal > 20


def workers(launcher):
    """The processes that a launcher has started."""
    children = f"/proc/{launcher.pid}/task/{launcher.pid}/children"
    with open(children) as file:
        return [int(pid) for pid in file.read().split()]


def test_a_launcher_changes_the_number_of_processes_and_recovers_from_a_crash(tmp_path):
    folder, launch = tmp_path, tmp_path / "launch"
    job = launched(folder, "--procs", 1, "--most", 3)
    wait_for(job, lambda: events(folder, "checkpoint"))
    assert esprof("elastic", "scale", 2, launch).returncode == 0
    wait_for(job, lambda: events(folder, "scaled"))
    # A plan for another number of processes moves the job to that.
    write_plan(folder / "another.json", plan_of(((0, 1, 2), (3,), ()), version=1))
    done = esprof("apply", folder / "another.json", folder / "plan.json")
    assert done.returncode == 0, done.stderr
    wait_for(job, lambda: len(events(folder, "scaled")) == 2 and events(folder, "adopted"))
    assert read_state(launch).world == 3
    # Nor does the plan, which is there still, take it back to 3.
    assert esprof("elastic", "scale", 2, launch).returncode == 0
    wait_for(job, lambda: len(events(folder, "scaled")) == 3)
    assert not (launch / "world").exists()  # Nobody goes back to the 2 that were wanted before.
    wait_for(job, lambda: len(workers(job)) == 2)  # Those before have ended.
    os.kill(workers(job)[0], signal.SIGKILL)
    wait_for(job, lambda: len(events(folder, "started")) == 5)
    wait_for(job, lambda: len(events(folder, "scaled")) == 4)
    job.send_signal(signal.SIGTERM)
    assert job.wait(_WAITS_S) == 0, job.stderr.read()

    assert [line.what for line in LAUNCH_LOG.read(launch) if line.what != "asked"] == [
        *("began", "left", "began", "left", "began", "left", "began", "crashed", "began", "ended")
    ]
    first, second, third, fourth = events(folder, "scaled")
    assert "from 1 to 2 processes: it was asked for" in first.reason
    assert "from 2 to 3 processes: 3 processes are to go on" in second.reason
    assert "from 3 to 2 processes: it was asked for" in third.reason
    assert "from 2 to 2 processes: a process was killed by signal 9" in fourth.reason
    assert set(first.phases_us) == {"save", "start", "process group", "restore", "first step"}
    assert all(us >= 0 for us in first.phases_us.values())
    assert esprof("elastic", "scale", 2, launch).returncode == 2  # It has ended.
    assert_equal_to_one_process(folder)


def test_hosts_join_and_leave_by_themselves(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meet = ("--hosts", "1:2", "--rendezvous", f"127.0.0.1:{port}")
    first = launched(tmp_path, *meet, name="first")
    wait_for(first, lambda: events(tmp_path, "checkpoint"))
    second = launched(tmp_path, *meet, name="second")
    wait_for(first, lambda: any("on 2 processes" in event.reason for event in events(tmp_path, "started")))
    # A plan cannot tell hosts to come.
    write_plan(tmp_path / "another.json", plan_of(((0, 1, 2, 3),), version=1))
    done = esprof("apply", tmp_path / "another.json", tmp_path / "plan.json")
    assert "torchrun sets the number of hosts of this job" in done.stderr
    second.send_signal(signal.SIGTERM)
    assert second.wait(_WAITS_S) == 0, second.stderr.read()
    wait_for(first, lambda: "on 1 processes" in events(tmp_path, "started")[-1].reason)
    count = len(events(tmp_path, "checkpoint"))
    wait_for(first, lambda: len(events(tmp_path, "checkpoint")) > count)
    first.send_signal(signal.SIGTERM)
    assert first.wait(_WAITS_S) == 0, first.stderr.read()
    assert_equal_to_one_process(tmp_path)


def test_a_script_that_crashes_at_once_is_not_restarted_forever(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print('here'); sys.exit(5)")
    words = [*record.ESPROF, "elastic", "launch", "--procs", "1", "--folder", tmp_path / "launch", "--", script]
    done = subprocess.run(words, env=record.environment(), capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    assert done.stdout == "here\n" * 3
    assert "giving up" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "exactly one of --procs and --hosts"),
        (("--procs", "1", "--hosts", "2"), "exactly one of --procs and --hosts"),
        (("--hosts", "2"), "needs --rendezvous"),
        (("--hosts", "3:2", "--rendezvous", "127.0.0.1:1"), "is not a range of hosts"),
        (("--hosts", "x", "--rendezvous", "127.0.0.1:1"), "is not a number of hosts"),
        (("--hosts", "1:2", "--rendezvous", "no.such.host.invalid:1"), "cannot be resolved"),
    ],
)
def test_invalid_arguments_of_launch_are_refused(tmp_path, words, says):
    (tmp_path / "train.py").touch()
    done = esprof("elastic", "launch", "--folder", tmp_path / "launch", *words, "--", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


def test_scale_without_a_launcher_is_an_error(tmp_path):
    done = esprof("elastic", "scale", 2, tmp_path)
    assert done.returncode == 2
    assert "no job was launched" in done.stderr
