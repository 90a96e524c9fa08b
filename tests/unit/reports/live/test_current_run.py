"""Telemetry requested from a job."""

import os
import threading
import time

import pytest
import torch

from esprof import load
from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError
from esprof.elastic.compress.codecs import registry
from esprof.elastic.compress.codecs.sparse import TopK
from esprof.elastic.reduce import measured as measuring
from esprof.elastic.reduce.measured import measured
from esprof.reports.live.current_run import current_run, has_ended
from esprof.run import request
from esprof.run.logs import HISTORY, JobEvent
from esprof.run.request import TelemetryRequest
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import bits, small_trainer


def test_a_running_job_writes_the_requested_telemetry(tmp_path):
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
    first = current_run(tmp_path, TelemetryRequest(since=2))
    later = current_run(tmp_path, TelemetryRequest(since=first.steps(0).arrow.column("step").to_pylist()[-1] + 1))
    over.set()
    job.join()
    steps = first.steps(0).arrow.column("step").to_pylist()
    assert steps[0] == 2
    assert later.steps(0).arrow.column("step").to_pylist()[0] == steps[-1] + 1


def test_a_job_measures_the_requested_exchanges_without_changing_its_bits(tmp_path):
    now, other = ((0, 1), (2, 3)), ((3,), (0, 1, 2))
    asked = TelemetryRequest(ests=(now, other, ((0, 1, 2, 3),), ((0, 1), (2, 2))), max_vnmse=0.05)

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


NOW = ((0, 1), (2, 3))


def asked_of(path, asked, between=lambda trainer: None):
    """What two ranks have measured when they were asked before their third step."""

    def body(transport):
        trainer = small_trainer(transport=transport, telemetry=path)
        for number in range(4):
            if number == 2 and transport.rank == 0:
                request.ask(path, asked)
            if number == 3:  # The next step begins with the answer.
                between(trainer)
            trainer.step()

    on_threads(2, body)
    return load(path).meta.exchanges


def test_codecs_are_not_measured_on_nan_or_zero_gradients(tmp_path):
    def diverged(trainer):
        for parameter in trainer.state.model.parameters():
            parameter.grad.fill_(torch.nan)

    def cleared(trainer):
        for parameter in trainer.state.model.parameters():
            parameter.grad.zero_()

    for name, between in {"diverged": diverged, "cleared": cleared}.items():
        found = asked_of(tmp_path / name, TelemetryRequest(ests=(NOW,), max_vnmse=0.05), between)
        assert [one.codec for one in found] == ["none"]


def test_a_failing_codec_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(registry._FACTORIES, "unready", lambda ratio: TopK(float(ratio)))
    found = {one.codec for one in asked_of(tmp_path, TelemetryRequest(max_vnmse=0.05))}
    assert {"none", "int8"} <= found
    assert "unready" not in found


def directly(**changed):
    def body(transport):
        trainer = small_trainer(transport=transport)
        trainer.step()
        options = {"scaled": False, "leaves": lambda: False} | {name: of(transport) for name, of in changed.items()}
        asked = TelemetryRequest(ests=(NOW,), max_vnmse=0.05)
        return measured(asked, trainer.layout, transport, trainer.assignment, [0.0, 0.0], "none", **options)

    return on_threads(2, body)


def test_nothing_is_measured_if_a_rank_must_leave():
    assert all(len(found) > 1 for found in directly())
    assert directly(leaves=lambda transport: lambda: transport.rank == 1) == [(), ()]


def test_nothing_is_measured_without_free_memory(monkeypatch):
    monkeypatch.setattr(measuring, "available", lambda: 1_000)
    assert directly() == [(), ()]


def test_the_simulated_lateness_of_ranks_is_bounded():
    ests = Assignment.of([[0, 1, 2], [3]])
    assert measuring._lateness([0.1, 0.1], ests, 0) == pytest.approx((0.2, 0.2))
    assert measuring._lateness([0.1, 0.1], ests, 1) == pytest.approx((0.0, 0.2))
    assert measuring._lateness([5.0, 5.0], ests, 0) == pytest.approx((0.5, 0.5))


def test_a_request_to_an_earlier_job_is_not_answered(tmp_path):
    request.ask(tmp_path, TelemetryRequest())
    trainer = small_trainer(telemetry=tmp_path)
    for _ in range(3):
        trainer.step()
    assert not request.is_open(tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_a_request_that_cannot_be_deleted_is_answered_once(tmp_path, monkeypatch):
    trainer = small_trainer(telemetry=tmp_path)
    trainer.step()

    def refuse(path, missing_ok=False):
        raise PermissionError(path)

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    request.ask(tmp_path, TelemetryRequest())
    times = []
    for _ in range(4):
        trainer.step()
        times.append(load(tmp_path).meta.created_ns if (tmp_path / "run.json").exists() else None)
    assert len({step_ms for step_ms in times if step_ms is not None}) == 1


@pytest.mark.parametrize("kind", ["pipe", "large"])
def test_an_invalid_request_file_is_not_read(kind, tmp_path):
    path = tmp_path / "telemetry.request"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b" " * (1 << 20) + b"{}")
    assert request.waiting(tmp_path) is None


def test_a_job_that_ends_during_a_request_is_not_waited_for(tmp_path, monkeypatch):
    trainer = small_trainer(telemetry=tmp_path)
    for _ in range(3):
        trainer.step()
    trainer.close()
    answers = iter([False, True])
    monkeypatch.setattr("esprof.reports.live.current_run.has_ended", lambda _: next(answers))
    assert current_run(tmp_path, wait_s=30).steps(0).arrow.num_rows == 3
    assert not request.is_open(tmp_path)


def test_a_request_that_arrives_during_another_is_retained(tmp_path):
    first, second = TelemetryRequest(since=1), TelemetryRequest(since=2)
    request.ask(tmp_path, second)
    request.withdraw(tmp_path, first)
    assert request.waiting(tmp_path) == second
    request.withdraw(tmp_path, second)
    assert not request.is_open(tmp_path)


def test_an_unanswered_request_is_an_error(tmp_path):
    with pytest.raises(EsprofError, match="has not written its telemetry"):
        current_run(tmp_path, wait_s=0.1)
    assert not request.is_open(tmp_path)


def test_the_existing_telemetry_of_an_ended_job_is_read(tmp_path, monkeypatch):
    trainer = small_trainer(telemetry=tmp_path)
    for _ in range(3):
        trainer.step()
    trainer.close()
    assert not has_ended(tmp_path)  # This process is there still.

    def gone(pid, number):
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    assert current_run(tmp_path).steps(0).arrow.num_rows == 3
    HISTORY.append(tmp_path, JobEvent(what="started", step=3))
    assert not has_ended(tmp_path)  # Another one goes on in its place.
