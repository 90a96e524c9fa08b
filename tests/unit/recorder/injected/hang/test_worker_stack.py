"""Asking a process that was forked for its stack."""

import os
import signal
import time

import pytest

from esprof.recorder.injected.hang import worker_stack
from esprof.recorder.injected.hang.worker_stack import dump_of, listen, state_of
from esprof.run.flight.log import main_stack


def stand_still():
    time.sleep(600)


@pytest.fixture
def child():
    """Forks a process that does something, then stands still. It is gone in the end."""
    pids = []

    def fork(first):
        done, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            first()
            os.write(tell, b".")
            stand_still()
        pids.append(pid)
        os.read(done, 1)
        while state_of(pid) != "S":  # It has told that it is about to stand still.
            time.sleep(0.01)
        return pid

    yield fork
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_stack_of_a_listening_process_is_returned_each_time(child):
    pid = child(listen)
    for _ in range(2):
        frames = main_stack(dump_of(pid))
        assert [frame.function for frame in frames[:2]] == ["stand_still", "fork"]
    assert state_of(pid) in ("S", "R")


def test_a_process_that_does_not_listen_gets_no_signal(child):
    pid = child(lambda: None)
    assert dump_of(pid) is None
    assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it lives"


def test_a_handler_of_the_jobs_own_stays(child):
    caught = []

    def job():
        signal.signal(worker_stack._signal(), lambda *_: caught.append(1))
        listen()

    assert dump_of(child(job)) is None


def test_a_process_that_was_stopped_shows_no_stack_but_its_state(child):
    pid = child(listen)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert dump_of(pid) is None
    assert state_of(pid) == "T"
