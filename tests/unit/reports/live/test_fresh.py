"""Telemetry that a job is asked for."""

import os
import threading
import time

import pytest

from esprof.errors import EsprofError
from esprof.reports.live.fresh import fresh, has_ended
from esprof.trace import request
from esprof.trace.history import Event, append
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import small_trainer


def test_a_running_job_writes_what_it_is_asked_for(tmp_path):
    over = threading.Event()

    def body(transport):
        trainer = small_trainer(transport=transport, telemetry=tmp_path, samples=None)
        while trainer.next_step < 5_000:
            trainer.step()
            if over.is_set() and trainer.next_step % 50 == 0:
                return

    job = threading.Thread(target=on_threads, args=(1, body))
    job.start()
    while not (tmp_path / "live.jsonl").exists():
        time.sleep(0.01)
    first = fresh(tmp_path, since=2)
    later = fresh(tmp_path, since=first.steps(0).arrow.column("step").to_pylist()[-1] + 1)
    over.set()
    job.join()
    steps = first.steps(0).arrow.column("step").to_pylist()
    assert steps[0] == 2
    assert later.steps(0).arrow.column("step").to_pylist()[0] == steps[-1] + 1


def test_nobody_answers(tmp_path):
    with pytest.raises(EsprofError, match="has not written its telemetry"):
        fresh(tmp_path, wait_s=0.1)
    assert not request.is_open(tmp_path)


def test_of_a_job_that_has_ended_what_there_is(tmp_path, monkeypatch):
    trainer = small_trainer(telemetry=tmp_path)
    for _ in range(3):
        trainer.step()
    trainer.close()
    assert not has_ended(tmp_path)  # This process is there still.

    def gone(pid, number):
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    assert fresh(tmp_path).steps(0).arrow.num_rows == 3
    append(tmp_path, Event(what="started", step=3))
    assert not has_ended(tmp_path)  # Another one goes on in its place.
