"""The advised interval of checkpoints."""

import msgspec
import pytest

from esprof.analyzers.advisors.checkpoint.advise import advise_checkpoints
from esprof.analyzers.recorded_job import RecordedJob
from esprof.core.errors import EsprofError
from esprof.core.plan import check
from esprof.core.save_cost import Failures
from tests.cases.saving_runs import job_that_saves

HOUR_NS = 3_600 * 10**9


def test_the_shortest_interval_within_the_bound():
    # A save stops a step of 100 ms for 50 ms: 3.5 % are 14.3 steps.
    advice = advise_checkpoints(RecordedJob(job_that_saves(stops_ms=50)))
    assert (advice.measured.every, advice.advised, advice.objective) == (10, 15, "overhead")
    now = advice.of(10)
    assert now.overhead_pct == pytest.approx(5, rel=0.05)
    assert now.low_pct < now.overhead_pct < now.high_pct
    assert advice.of(5).overhead_pct == pytest.approx(10, rel=0.05)
    assert advice.of(15).worst_loss_us == pytest.approx(1_500_000, rel=0.01)
    assert advice.gain_pct == pytest.approx(100 * (1 - 103.3 / 105), rel=0.1)
    msgspec.json.encode(advice)


def test_a_plan_for_another_interval_and_none_for_the_same():
    plan = advise_checkpoints(RecordedJob(job_that_saves())).plan
    check(plan)
    section = plan.parts.checkpoint
    assert (section.body.every, section.applies, section.changes_bits) == (15, "live", False)
    assert section.predicted.low_us <= section.predicted.step_us <= section.predicted.high_us
    assert advise_checkpoints(RecordedJob(job_that_saves()), max_overhead_pct=5.0).plan is None


def test_with_failures_the_interval_that_loses_least_within_the_bound():
    # Young: sqrt(2 · 0.05 s · 3600 s) / 0.1 s = 190 steps.
    advice = advise_checkpoints(RecordedJob(job_that_saves()), failures=Failures(mtbf_ns=HOUR_NS))
    assert (advice.objective, advice.advised) == ("waste", pytest.approx(190, abs=4))
    low, high = advice.flat
    assert low < advice.best < high
    # A job that fails every minute would save every 25 steps, one every 5 s all the time; the bound allows every 15th.
    assert advise_checkpoints(RecordedJob(job_that_saves()), failures=Failures(mtbf_ns=5e9)).advised == 15


def test_a_save_in_the_background_needs_its_time():
    advice = advise_checkpoints(RecordedJob(job_that_saves(stops_ms=1, writes_ms=700)))
    assert advice.advised == advice.measured.writes.mean_us / 100_000 + 1 == 8


def test_what_saves_in_the_background_cost_may_be_half_or_twice_as_much():
    stopping, written = (
        advise_checkpoints(RecordedJob(job_that_saves(stops_ms=20, writes_ms=writes_ms))).intervals[0]
        for writes_ms in (0, 700)
    )
    assert stopping.high_pct / stopping.low_pct < 1.2
    assert written.high_pct / written.low_pct >= 4
    assert written.low_pct < written.overhead_pct < written.high_pct


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"name": "forward"}, "has no saves"),
        ({"steps": 20}, "2 saves in steps without profiler"),
        ({"every": 1}, "steps without a save"),
        ({"every": 4, "writes_ms": 500}, "writes a save in nearly every step"),
    ],
)
def test_too_little_is_no_advice(job, says):
    with pytest.raises(EsprofError, match=says):
        advise_checkpoints(RecordedJob(job_that_saves(**job)))


def test_other_work_in_the_steps_that_save_is_pointed_out():
    assert advise_checkpoints(RecordedJob(job_that_saves())).warnings == ()
    assert "20 % of what a save costs" in advise_checkpoints(RecordedJob(job_that_saves(calls_ms=10))).warnings[0]
