"""The recorder's circuit breaker."""

import json
import signal

import pytest

from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log


class TooLong(Exception):
    """What a job raises when its step takes too long."""


@pytest.fixture
def alarm():
    def give_up(number, frame):
        raise TooLong

    before = signal.signal(signal.SIGALRM, give_up)
    yield
    signal.signal(signal.SIGALRM, before)


def test_what_the_jobs_signal_handler_raises_in_our_midst_reaches_the_job(alarm):
    breaker = CircuitBreaker("recording", Log())
    with pytest.raises(TooLong):
        breaker.run(signal.raise_signal, signal.SIGALRM)
    assert not breaker.on


def test_a_fault_of_ours_does_not(alarm):
    breaker = CircuitBreaker("recording", Log())
    assert breaker.run(int, "no number") is None
    assert not breaker.on


@pytest.mark.parametrize(("options", "kind"), [({}, "fault"), ({"note": "stopped"}, "stopped")])
def test_the_kind_of_its_note_says_whether_all_recording_ended(tmp_path, options, kind):
    log = Log()
    log.open(str(tmp_path / "rank-00000"), 1 << 20)
    CircuitBreaker("recording", log, **options).run(int, "no number")
    row = json.loads((tmp_path / "rank-00000.jsonl").read_text())
    assert row["kind"] == kind
    assert row["message"].startswith("recording failed: ValueError")
