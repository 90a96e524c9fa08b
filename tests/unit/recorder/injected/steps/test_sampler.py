"""Looks at a thread that is known to be somewhere."""

import json
import os
import sys
import threading
import time

import pytest

from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.state import StepState
from esprof.recorder.injected.steps import sampler as sampler_module
from esprof.recorder.injected.steps.sampler import StackSampler


@pytest.fixture
def log(tmp_path):
    log = Log()
    log.open(str(tmp_path / "rank-00000"), 1 << 20)
    yield log
    log.close()


@pytest.fixture
def state():
    state = StepState()
    state.step, state.thread, state.native_thread = 7, threading.get_ident(), threading.get_native_id()
    return state


@pytest.fixture
def sampler(state, log):
    sampler = StackSampler(state, log)
    sampler.start()
    yield sampler
    sampler.stop()


def noted(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "rank-00000.jsonl").read_text().splitlines()]


def wait_for(log: Log, samples: int) -> list[tuple]:
    while len(log.tail("samples")) < samples:
        time.sleep(0.01)
    return log.tail("samples")


def test_a_thread_that_sleeps_is_seen_where_it_sleeps(sampler, log, tmp_path):
    rows = wait_for(log, 10)
    at, took, ran, steps, _ = zip(*rows, strict=True)
    assert list(at) == sorted(at)
    assert min(took) > 0
    assert 0 <= sum(ran) < sum(took)
    assert set(steps) == {7}
    functions = [row["function"] for row in noted(tmp_path)]
    assert "wait_for" in functions
    here = next(row for row in noted(tmp_path) if row["function"] == "wait_for")
    assert here["file"] == os.path.relpath(__file__)
    assert here["caller"] < here["number"] <= len(functions)


def test_a_thread_is_seen_where_it_says_that_it_is(state, log, tmp_path):
    sampler, begin = StackSampler(state, log), time.monotonic_ns()
    sampler.sample_at(sys._getframe())
    sampler.sample_at(sys._getframe())
    line = sys._getframe().f_lineno - 1
    ((_, took, _, step, place),) = log.tail("samples")
    assert step == 7
    assert 0 < took < time.monotonic_ns() - begin
    assert next(row["line"] for row in noted(tmp_path) if row["number"] == place) == line
    sampler.give_up()
    sampler.sample_at(sys._getframe())
    assert len(log.tail("samples")) == 1


def test_a_forked_child_notes_nothing(state, log):
    sampler = StackSampler(state, log)
    sampler.sample_at(sys._getframe())
    child = os.fork()
    if not child:
        sampler.sample_at(sys._getframe())
        os._exit(len(log.tail("samples")))
    assert os.waitpid(child, 0)[1] == 0


def test_python_and_its_packages_are_named_wherever_they_are(sampler, log, tmp_path):
    wait_for(log, 2)
    files = [row["file"] for row in noted(tmp_path) if row["function"] in ("pytest_pyfunc_call", "console_main")]
    assert files
    assert all(
        file.startswith(f"python{sys.version_info.major}.{sys.version_info.minor}/site-packages/") for file in files
    )


def test_within_windows_with_stacks_it_looks_often_and_leaves_pythons_settings_as_they_were(sampler, state, log):
    before = sys.getswitchinterval()
    wait_for(log, 1)
    state.sampled_closely = True
    rows = wait_for(log, 100)
    assert sys.getswitchinterval() < before
    assert min(row[1] for row in rows) < 10_000_000
    state.sampled_closely = False
    while sys.getswitchinterval() != before:
        time.sleep(0.01)


def test_a_window_with_stacks_is_looked_at_from_its_first_moment_on(sampler, state, log, monkeypatch):
    wait_for(log, 1)
    monkeypatch.setattr(sampler_module, "PERIOD_S", 60.0)
    wait_for(log, len(log.tail("samples")) + 1)  # From then on it waits for a minute.
    opened_ns = time.monotonic_ns()
    state.sampled_closely = True
    state.window_opens.set()
    rows = wait_for(log, len(log.tail("samples")) + 3)
    assert max(row[1] for row in rows[-3:]) <= time.monotonic_ns() - opened_ns


def test_a_child_that_is_forked_meanwhile_gets_pythons_settings_back(sampler, state, log):
    before = sys.getswitchinterval()
    state.sampled_closely = True
    wait_for(log, 5)
    child = os.fork()
    if not child:
        os._exit(0 if sys.getswitchinterval() == before else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_thread_that_has_ended_is_left_alone(sampler, state, log):
    ended = threading.Thread(target=lambda: setattr(state, "native_thread", threading.get_native_id()))
    ended.start()
    ended.join()
    state.thread = ended.ident
    time.sleep(0.1)
    count = len(log.tail("samples"))
    time.sleep(0.1)
    assert len(log.tail("samples")) == count
    state.thread, state.native_thread = threading.get_ident(), threading.get_native_id()
    wait_for(log, count + 2)


def test_a_thread_without_frames_is_left_alone(state, log):
    state.thread = -1
    sampler = StackSampler(state, log)
    for _ in range(3):
        sampler._sample(None)
    assert log.tail("samples") == []
    sampler._sample(sys._getframe())
    sampler._sample(sys._getframe())
    assert len(log.tail("samples")) == 1


def test_nothing_is_noted_before_the_first_step_has_ended(sampler, state, log):
    state.step = 0
    time.sleep(0.1)
    assert len(log.tail("samples")) <= 1


def test_a_recursion_is_one_line_however_deep_it_is(sampler, log, tmp_path):
    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        else:
            wait_for(log, len(log.tail("samples")) + 3)

    for depth in (0, 150, 400):
        down(depth)
    rows = [row for row in noted(tmp_path) if row["function"].endswith("down")]
    assert len(rows) <= 6
    assert any(row["function"].startswith("test_a_recursion") for row in noted(tmp_path))


def test_a_name_that_is_no_utf_8_can_be_read_back(sampler, log, tmp_path):
    code = compile("wait()", "tr\udce9n.py", "exec")
    exec(code, {"wait": lambda: wait_for(log, len(log.tail("samples")) + 3)})
    assert "tr\\udce9n.py" in [row["file"] for row in noted(tmp_path)]


def test_a_switch_interval_that_the_job_sets_meanwhile_stays(sampler, state, log):
    before = sys.getswitchinterval()
    try:
        state.sampled_closely = True
        wait_for(log, 20)
        sys.setswitchinterval(0.02)
        state.sampled_closely = False
        wait_for(log, len(log.tail("samples")) + 3)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(before)
