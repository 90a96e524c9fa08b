"""Telemetry that a job is asked for."""

import os
import threading
import time

import pytest

from esprof import load
from esprof.errors import EsprofError
from esprof.reports.live.fresh import fresh, has_ended
from esprof.trace import request
from esprof.trace.history import Event, append
from esprof.trace.request import Request
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import bits, small_trainer


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
    first = fresh(tmp_path, Request(since=2))
    later = fresh(tmp_path, Request(since=first.steps(0).arrow.column("step").to_pylist()[-1] + 1))
    over.set()
    job.join()
    steps = first.steps(0).arrow.column("step").to_pylist()
    assert steps[0] == 2
    assert later.steps(0).arrow.column("step").to_pylist()[0] == steps[-1] + 1


def test_a_job_measures_the_exchanges_that_it_is_asked_about_and_no_bit_changes(tmp_path):
    now, other = ((0, 1), (2, 3)), ((3,), (0, 1, 2))
    asked = Request(ests=(now, other, ((0, 1, 2, 3),), ((0, 1), (2, 2))), max_vnmse=0.05)

    def body(transport):
        trainer = small_trainer(transport=transport, telemetry=tmp_path)
        if transport.rank == 0:
            request.ask(tmp_path, asked)
        return bits(trainer, 4)

    assert on_threads(2, body) == [bits(small_trainer(), 4)] * 2
    assert not request.is_open(tmp_path)
    names = ("none", "fp16", "bf16", "int8", "int4", "topk", "randk", "sign", "powersgd")
    # Another test of this process may have made a codec known.
    found = [one for one in load(tmp_path).meta.exchanges if one.codec.partition(":")[0] in names]
    # Of the four assignments two are none of this job, and codecs that lose more than a twentieth are left out.
    assert [(one.ests, one.codec) for one in found] == [
        (now, "none"),
        (other, "none"),
        (now, "none"),
        (now, "fp16"),
        (now, "bf16"),
        (now, "int8"),
        (now, "int4"),
    ]
    assert all(3 <= len(one.samples_ns) <= 10 and min(one.samples_ns) > 0 for one in found)
    lost = {one.codec: one.vnmse for one in found}
    assert lost["none"] < 1e-12 < lost["fp16"] < lost["bf16"] < lost["int8"] < lost["int4"] < 0.05
    sent = {one.codec: one.sent for one in found if one.ests == now}
    assert sent["none"] > sent["int8"] > sent["int4"]


def test_a_job_that_ends_while_it_is_asked_is_not_waited_for(tmp_path, monkeypatch):
    trainer = small_trainer(telemetry=tmp_path)
    for _ in range(3):
        trainer.step()
    trainer.close()
    looks = iter([False, True])
    monkeypatch.setattr("esprof.reports.live.fresh.has_ended", lambda _: next(looks))
    assert fresh(tmp_path, wait_s=30).steps(0).arrow.num_rows == 3
    assert not request.is_open(tmp_path)


def test_a_request_that_comes_while_another_is_served_stays(tmp_path):
    first, second = Request(since=1), Request(since=2)
    request.ask(tmp_path, second)
    request.withdraw(tmp_path, first)
    assert request.waiting(tmp_path) == second
    request.withdraw(tmp_path, second)
    assert not request.is_open(tmp_path)


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
