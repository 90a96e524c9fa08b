"""The steps of a running job, as they come."""

import pytest

from esprof.core.errors import InputError, OutputError
from esprof.run import live, request
from esprof.run.live import Live, LiveStep, Tail
from esprof.run.request import TelemetryRequest


def step(number):
    return LiveStep(step=number, took_us=1.5, busy_us=(1.0, 0.5), ests=(3, 1))


def test_steps_are_read_once_each(tmp_path):
    tail, job = Tail(tmp_path / "run"), Live(tmp_path / "run")
    assert tail.read() == []
    for number in range(3):
        job.note(step(number))
    assert tail.read() == [step(0), step(1), step(2)]
    job.note(step(3))
    assert tail.read() == [step(3)]
    assert tail.read() == []
    assert Tail(tmp_path / "run").read() == [step(number) for number in range(4)]


def test_half_a_line_is_read_when_it_is_whole_and_what_is_no_step_is_left_out(tmp_path):
    Live(tmp_path).note(step(0))
    path, tail = tmp_path / "live.jsonl", Tail(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"[]\n\xff\n" + whole[:10])
    assert tail.read() == [step(0)]
    path.write_bytes(whole + b"[]\n\xff\n" + whole)
    assert tail.read() == [step(0)]


def test_a_large_file_is_begun_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "_MOST_BYTES", 500)
    tail, job, found = Tail(tmp_path), Live(tmp_path), []
    for number in range(100):
        job.note(step(number))
        found += tail.read()
        assert (tmp_path / "live.jsonl").stat().st_size < 1000
    assert found == [step(number) for number in range(100)]


def test_a_job_that_begins_again_begins_the_file_anew(tmp_path):
    for first in (0, 7):
        job = Live(tmp_path)
        job.note(step(first))
        job.close()
    assert Tail(tmp_path).read() == [step(7)]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OutputError):
        Live(tmp_path / "run")


def test_a_place_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "live.jsonl").mkdir()
    with pytest.raises(InputError):
        Tail(tmp_path).read()


def test_telemetry_is_asked_for_by_a_file(tmp_path):
    assert request.waiting(tmp_path) is None
    request.ask(tmp_path, TelemetryRequest(since=7))
    assert request.waiting(tmp_path) == TelemetryRequest(since=7)
    assert request.is_open(tmp_path)
    request.withdraw(tmp_path)
    request.withdraw(tmp_path)
    assert not request.is_open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"since": "x"}', b"\xff"])
def test_what_is_no_request_asks_for_nothing(tmp_path, content):
    (tmp_path / "telemetry.request").write_bytes(content)
    assert request.waiting(tmp_path) is None
