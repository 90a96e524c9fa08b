"""A job whose Run is looked at while it runs."""

import pytest

import esprof
from esprof.core.errors import OutputError
from esprof.elastic.telemetry import recorder
from esprof.run import request
from esprof.run.logs import Tail
from esprof.run.request import TelemetryRequest
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import small_trainer


def test_each_step_is_shown_with_what_the_ranks_were_busy_for(tmp_path):
    def body(transport):
        trainer = small_trainer(transport=transport, telemetry=tmp_path)
        for _ in range(4):
            trainer.step()

    on_threads(2, body)
    steps = Tail(tmp_path).read()
    assert [(step.step, step.ests, step.twice) for step in steps] == [
        (number, (2, 2), number < 2) for number in range(4)
    ]
    assert all(busy > 0 for step in steps for busy in step.busy_us)


def test_telemetry_is_written_when_it_is_asked_for_and_no_earlier_steps_are_in_it(tmp_path):
    def body(transport):
        trainer = small_trainer(transport=transport, telemetry=tmp_path)
        for number in range(8):
            if number == 5 and transport.rank == 0:
                request.ask(tmp_path, TelemetryRequest(since=3))
            trainer.step()

    on_threads(2, body)
    run = esprof.load(tmp_path)
    for rank in (0, 1):
        assert run.steps(rank).arrow.column("step").to_pylist() == [3, 4, 5]
    assert not request.is_open(tmp_path)


def test_what_is_asked_for_right_after_it_was_written_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_MAX_STEPS_RETAINED", 4)

    def body(transport):
        trainer = small_trainer(transport=transport, telemetry=tmp_path)
        for number in range(6):
            if number == 3 and transport.rank == 0:
                request.ask(tmp_path, TelemetryRequest(ests=(((0, 1), (2, 3)),)))
            trainer.step()

    on_threads(2, body)
    assert len(esprof.load(tmp_path).meta.exchanges) == 1


def test_telemetry_that_cannot_be_written_does_not_stop_the_job(tmp_path, monkeypatch):
    def full(path, name, rank, table):
        if rank == 1:
            raise OutputError("no room")

    monkeypatch.setattr(recorder, "write_table", full)

    def body(transport):
        trainer = small_trainer(transport=transport, telemetry=tmp_path)
        for _ in range(3):
            trainer.step()
        trainer.flush()
        return trainer.next_step

    with pytest.warns(UserWarning, match=r"telemetry of the job was not written: no room \(rank 1\)"):
        assert on_threads(2, body) == [3, 3]
