"""`runqueue=0`, and sleeps under `cpu=`: both depend on how long the training thread ran in each step."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import EPOCH_NS, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000


def after(spec: str, cpu_ms, ready_ms=0):
    """What a scenario makes of steps of 50 ms: 20 in `aten::mm`, a gap of 20, one of 4, 6 in `aten::add`."""
    rows = [
        row
        for n in range(3)
        for row in (
            step(n, 50 * MS * n, 50 * MS * (n + 1)),
            op("aten::mm", 50 * MS * n, 20 * MS),
            op("aten::mul", 50 * MS * n + 40 * MS, 0.001 * MS),
            op("aten::add", 50 * MS * n + 44 * MS, 6 * MS),
        )
    ]
    noted = {"cpu_ns": cpu_ms, "ready_ns": ready_ms}
    columns = {name: [None if ms is None else round(ms * NS)] * 3 for name, ms in noted.items()}
    run = run_of({0: rows}, steps={0: step_table([50] * 3, start_ns=EPOCH_NS, phase="timed", **columns)})
    (answer,) = what_if(run, build(run), [spec])
    return answer.predicted_us / MS if answer.answered else answer.reason


@pytest.mark.parametrize(
    ("cpu_ms", "ready_ms", "left_ms"),
    [(50, 0, 25), (30, 0, 35), (20, 10, 35), (40, 0, 30), (28, 0, 36), (10, 0, 37), (None, None, 25)],
    ids=[
        "ran all the time", "slept in the long gap", "was preempted", "slept for half of it", "slept in both gaps",
        "slept in operations, too", "not known",
    ],
)  # fmt: skip
def test_a_faster_cpu_shortens_no_sleep(cpu_ms, ready_ms, left_ms):
    assert after("cpu=2x", cpu_ms, ready_ms) == pytest.approx(left_ms, abs=0.01)


@pytest.mark.parametrize(("ready_ms", "left_ms"), [(0, 50), (10, 40), (45, 5), (80, 0)])
def test_time_without_a_cpu_is_taken_from_the_work(ready_ms, left_ms):
    assert after("runqueue=0", 5, ready_ms) == pytest.approx(left_ms, abs=0.01)


def test_where_it_was_not_recorded_the_question_is_declined():
    assert "was not recorded" in after("runqueue=0", 5, None)
