"""What becomes of a window that is open, or being written, when the recorder ends by a fault of its own."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.state import StepState
from esprof.recorder.injected.windows import windows as module
from esprof.recorder.injected.windows.schedule import WindowSchedule
from esprof.recorder.injected.windows.windows import Windows
from esprof.run.raw.settings import Settings

SETTINGS = Settings(skip=2, warmup=1, steps=3, stack_steps=0)
TIMED, EXPORT = 3, 6
"""The step in which the timed window begins, and the one in which it is written."""


class FakeWindow:
    """A window of no profiler, which cannot be kept; `fault` is raised as the step begins of which it is the key."""

    fault: ClassVar[dict[int, Exception]] = {}
    closed: ClassVar[list[bool]] = []

    def __init__(self, path, *, shapes, memory, modules):
        self.is_closed = False

    def prepare(self):
        pass

    def start(self):
        pass

    def begin_step(self, step):
        if step in self.fault:
            raise self.fault[step]

    def close(self, *, keep):
        self.is_closed = True
        self.closed.append(keep)
        if keep:
            raise OSError(errno.ENOSPC, "full")


@pytest.fixture
def take(tmp_path, monkeypatch):
    """Takes steps until the recorder ends by a fault, and returns its notes."""
    monkeypatch.setattr(module, "ProfilerWindow", FakeWindow)
    monkeypatch.setattr(FakeWindow, "closed", [])

    def take(steps: int, fault: dict[int, Exception]) -> list[dict]:
        monkeypatch.setattr(FakeWindow, "fault", fault)
        log, state = Log(), StepState()
        log.open(str(tmp_path / "rank-00000"), 1 << 20)
        windows = Windows(str(tmp_path), SETTINGS, WindowSchedule(SETTINGS), state, log)
        breaker = CircuitBreaker("recording", log, windows.stop, note="stopped")
        for state.step in range(1, steps + 1):
            breaker.run(windows.begin_step, state.step)
        assert not breaker.on
        return [json.loads(line) for line in (tmp_path / "rank-00000.jsonl").read_bytes().splitlines()]

    return take


LOST = {"kind": "lost", "first": TIMED, "phase": "timed", "reason": "the recorder stopped before it was closed"}


def test_the_window_that_was_open_is_lost(take):
    lost, stopped = take(TIMED + 1, {TIMED + 1: ValueError("no")})
    assert (lost, stopped["kind"], FakeWindow.closed) == (LOST, "stopped", [False])


def test_the_window_that_could_not_be_written_is_lost(take):
    lost, stopped = take(EXPORT, {})
    assert (lost, stopped["kind"], FakeWindow.closed) == (LOST, "stopped", [True])


@pytest.mark.parametrize(("stack_steps", "record"), [(2, {"timed": False, "stack": True}), (0, {"timed": True})])
def test_steps_with_stacks_record_shapes_or_timed_ones_if_there_are_none(tmp_path, monkeypatch, stack_steps, record):
    made = {}

    class Written(FakeWindow):
        def __init__(self, path, *, shapes, memory, modules):
            super().__init__(path, shapes=shapes, memory=memory, modules=modules)
            self.path = Path(path)
            made[self.path.name.split(".")[1]] = shapes

        def close(self, *, keep):
            self.is_closed = True
            self.path.touch()

    monkeypatch.setattr(module, "ProfilerWindow", Written)
    settings, log, state = replace(SETTINGS, shapes=True, stack_steps=stack_steps), Log(), StepState()
    log.open(str(tmp_path / "rank-00000"), 1 << 20)
    windows = Windows(str(tmp_path), settings, WindowSchedule(settings), state, log)
    for state.step in range(1, settings.probe_at + 1):
        windows.begin_step(state.step)
    assert made == record
