"""The recorder's own thread: what comes round, what a fault ends, and what the end of the process brings."""

import threading

import pytest

from esprof.recorder.injected.log import background_writer
from esprof.recorder.injected.log.background_writer import BackgroundWriter
from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(background_writer, "TICK_S", 0.001)


class Part:
    def __init__(self, fails_at: int = 1 << 30) -> None:
        self.ticks = 0
        self.closed = 0
        self.fails_at = fails_at
        self.enough = threading.Event()

    def tick(self, now_ns: int) -> None:
        assert now_ns > 0
        self.ticks += 1
        if self.ticks == self.fails_at:
            raise RuntimeError("planted")
        if self.ticks == 5:
            self.enough.set()

    def close(self) -> None:
        self.closed += 1


def test_tasks_run_until_the_end_and_notes_are_written_last(tmp_path):
    part, order = Part(), []
    writer = BackgroundWriter(lambda: order.append(part.closed), [(part, CircuitBreaker("x", Log()))])
    writer.start()
    assert part.enough.wait(10)
    writer.stop()
    ticks = part.ticks
    assert order[-1] == part.closed == 1
    assert order[0] == 0
    assert part.ticks == ticks


def test_a_fault_ends_only_its_task_and_is_reported_once(capsys):
    broken, sound = Part(fails_at=2), Part()
    writer = BackgroundWriter(
        lambda: None, [(broken, CircuitBreaker("the broken part", Log())), (sound, CircuitBreaker("x", Log()))]
    )
    writer.start()
    assert sound.enough.wait(10)
    writer.stop()
    assert broken.ticks == 2
    assert (broken.closed, sound.closed) == (0, 1)
    assert writer.fault is None
    talk = capsys.readouterr().err
    assert talk.count("the broken part failed") == 1
    assert "planted" in talk


def test_a_fault_of_writing_waits_for_the_training_thread():
    def flush():
        raise OSError("disk full")

    writer = BackgroundWriter(flush, [])
    writer.start()
    writer._thread.join(10)
    assert str(writer.fault) == "disk full"
    with pytest.raises(OSError, match="disk full"):
        writer.stop()
