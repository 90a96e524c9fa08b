"""What a thread ran, was ready, and slept, against what this very thread does."""

import threading
import time

import pytest

from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.steps import control_groups, cpu_time
from esprof.recorder.injected.steps.cpu_time import CpuTime, Ran

MS = 1_000_000


@pytest.fixture
def meter():
    return CpuTime(Log())


@pytest.fixture
def group(tmp_path, monkeypatch):
    """The `cpu.stat` of the only control group that there is."""
    path = tmp_path / "cpu.stat"
    monkeypatch.setattr(control_groups, "files", lambda *names: [str(path), str(tmp_path / "hidden")])
    monkeypatch.setattr(cpu_time, "MIN_BETWEEN_READINGS_NS", 0)
    return path


def spin(ns):
    until = time.thread_time_ns() + ns
    while time.thread_time_ns() < until:
        pass


def test_the_time_before_the_first_boundary_is_unknown(meter):
    assert meter.at_boundary() == Ran()


def test_what_a_thread_ran_counts_and_what_it_slept_does_not(meter):
    started = time.monotonic_ns()
    meter.at_boundary()
    spin(20 * MS)
    time.sleep(0.05)
    ran = meter.at_boundary()
    took = time.monotonic_ns() - started
    assert ran.cpu_ns >= 20 * MS
    assert ran.cpu_ns + (ran.ready_ns or 0) <= took - 50 * MS


def test_what_other_threads_run_does_not_count(meter):
    meter.at_boundary()
    other = threading.Thread(target=spin, args=(50 * MS,))
    other.start()
    other.join()
    assert meter.at_boundary().cpu_ns < 50 * MS


def test_a_step_that_another_thread_goes_on_with_is_not_known(meter):
    meter.at_boundary()
    found = []
    other = threading.Thread(target=lambda: found.extend([meter.at_boundary(), meter.at_boundary()]))
    other.start()
    other.join()
    assert found[0] == Ran()
    assert found[1].cpu_ns is not None
    assert meter.at_boundary() == Ran()


@pytest.mark.parametrize(
    ("before", "after"),
    [("throttled_usec 5\n", "throttled_usec 9\n"), ("throttled_time 5000\n", "throttled_time 9000\n")],
    ids=["v2", "v1"],
)
def test_throttled_time_counts_from_the_last_reading(meter, group, before, after):
    group.write_text(f"nr_periods 7\n\n{before}")
    meter.at_boundary()
    group.write_text(f"nr_periods 8\n\n{after}")
    assert [meter.at_boundary().throttled_ns for _ in range(2)] == [4000, 0]


def test_throttling_is_read_now_and_then(meter, group, monkeypatch):
    monkeypatch.setattr(cpu_time, "MIN_BETWEEN_READINGS_NS", 3600 * 10**9)
    group.write_text("throttled_usec 5\n")
    meter.at_boundary()
    assert meter.at_boundary().throttled_ns is None


def test_without_a_control_group_nothing_is_throttled(meter, group):
    meter.at_boundary()
    ran = meter.at_boundary()
    assert (ran.cpu_ns is not None, ran.throttled_ns) == (True, None)


def test_a_kernel_that_does_not_tell_who_waited_for_a_cpu(meter, monkeypatch):
    monkeypatch.setattr(cpu_time, "opened_schedule", lambda thread: None)
    meter.at_boundary()
    ran = meter.at_boundary()
    assert (ran.cpu_ns is not None, ran.ready_ns) == (True, None)


def test_a_fault_costs_the_readings_and_nothing_else(meter, group, capfd):
    group.write_text("throttled_usec many\n")
    assert meter.at_boundary() == Ran()
    assert meter.at_boundary() == Ran()
    assert "reading of CPU time failed" in capfd.readouterr().err
