"""The job's own steps and their parts, from events by hand: an optimizer's call lies across the border of two steps."""

import pytest

from esprof.run.collect.own_steps import own_steps
from esprof.run.schema import STEPS, table
from tests.cases.graph import op, run_of, step

MS = 1000.0
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def recorded(rows, took_ms, phases):
    starts = [100_000_000 * number for number in range(len(took_ms))]
    took = [round(1e6 * one) for one in took_ms]
    steps = table({"step": range(1, 1 + len(took)), "start_ns": starts, "dur_ns": took, "phase": phases}, STEPS)
    return run_of({0: rows}, steps={0: steps})


def test_parts_of_a_step():
    rows = [step(1, 0, 100 * MS), op("aten::linear", 10 * MS, 20 * MS), op(BACKWARD, 40 * MS, 30 * MS)]
    rows += [op("Optimizer.step#SGD.step", 80 * MS, 25 * MS), op("Optimizer.step#SGD.step", -10 * MS, 15 * MS)]
    (found,) = own_steps(recorded(rows, [70, 80, 90], ["plain", "timed", "plain"]))
    assert found.samples_ns == (90_000_000,)
    assert found.parts_ns["backward"] == pytest.approx(30e6)
    # 20 ms of its own call, and 5 of the one that began in the step before.
    assert found.parts_ns["optimizer"] == pytest.approx(25e6)
    assert found.parts_ns["forward"] == pytest.approx(40e6)
    assert found.parts_ns["data"] == 0
    assert sum(found.parts_ns.values()) == pytest.approx(100e6)


def test_a_job_without_a_backward_pass_has_steps_and_no_parts():
    rows = [step(1, 0, 100 * MS), op("aten::linear", 10 * MS, 20 * MS)]
    (found,) = own_steps(recorded(rows, [70, 80], ["plain", "plain"]), "--batch 8")
    assert (found.parts_ns, found.setting) == ({}, "--batch 8")


def test_a_rank_whose_every_step_was_profiled_has_no_steps_of_its_own():
    rows = [step(1, 0, 100 * MS), op("aten::linear", 10 * MS, 20 * MS)]
    assert list(own_steps(recorded(rows, [70, 80], ["plain", "timed"]))) == []
