"""Signals to the launcher reach the job once, whomever they were sent to."""

import os
import signal
import subprocess
import sys
import time

import pytest

LAUNCHER = """
import os, sys
from esprof.recorder.launcher.child import run_child
sys.exit(run_child([sys.executable, "-c", sys.argv[1]], os.environ))
"""
JOB = """
import signal, sys, time
heard = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: heard.append(number))
print("ready", flush=True)
until = time.monotonic() + 60
while not heard and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)
print(len(heard), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to", ["group", "launcher"])
def test_a_signal_reaches_the_job_once(number, to):
    job = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, JOB], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout.readline() == "ready\n"
    time.sleep(0.2)  # The launcher waits for signals.
    os.killpg(job.pid, number) if to == "group" else os.kill(job.pid, number)
    assert job.stdout.readline() == "1\n"
    assert job.wait(60) == 0


def test_a_job_in_a_group_of_its_own_gets_a_signal_to_the_launchers_group():
    program = f"import os; os.setsid()\n{JOB}"
    job = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, program], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout.readline() == "ready\n"
    time.sleep(0.2)
    os.killpg(job.pid, signal.SIGTERM)
    assert job.stdout.readline() == "1\n"
    assert job.wait(60) == 0


def test_nothing_remains_after_the_launcher_was_killed():
    job = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, JOB], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout.readline() == "ready\n"
    job.kill()
    job.wait()
    until = time.monotonic() + 60
    while len(members(job.pid)) > 1:  # The job itself goes on.
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGKILL)


def members(group):
    """The processes of a group."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(pid)) == group:
                found.append(int(pid))
        except OSError:
            continue
    return found
