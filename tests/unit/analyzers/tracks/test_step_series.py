"""Series over the steps: from step tables by hand, and the shares of replayed steps."""

import pytest

from esprof.analyzers.tracks.step_series import StepSeries
from tests.cases import step_runs
from tests.cases.exported import cpu_run
from tests.cases.step_runs import step_table

MS = 1_000_000


def figures(run, **options):
    return {one.step: one.figures for one in StepSeries.of(run, **options).by_step()}


def test_each_step_has_its_time_throughput_and_wait_for_the_loader():
    first = step_table([10, 20], samples=[4, 4], loader_wait_ns=[5 * MS, 0])
    second = step_table([10, 20], samples=[4, 12], loader_wait_ns=[0, 0], phase=["plain", "timed"])
    assert figures(step_runs.run(first, second)) == {
        0: {
            "esprof/step_time_ms": 10,
            "esprof/is_profiled": 0,
            "esprof/samples_per_s": 800,
            "esprof/loader_wait_pct": 25,
            "esprof/loader_wait_pct_max": 50,
        },
        1: {
            "esprof/step_time_ms": 20,
            "esprof/is_profiled": 1,
            "esprof/samples_per_s": 800,
            "esprof/loader_wait_pct": 0,
            "esprof/loader_wait_pct_max": 0,
        },
    }


def test_what_one_rank_lacks_is_left_out_of_the_step():
    first = step_table([10, 10, 10], tokens=[100, 100, 100])
    second = step_table([10, 10], tokens=[100, None])
    found = figures(step_runs.run(first, second))
    assert {step: values.get("esprof/tokens_per_s") for step, values in found.items()} == {0: 20_000, 1: None}


def test_a_step_ends_with_the_last_rank():
    series = StepSeries.of(step_runs.run(step_table([10, 10]), step_table([10, 30])))
    assert series.start_ns == step_runs.EPOCH_NS
    assert [one.end_ns - series.start_ns for one in series.by_step()] == [10 * MS, 40 * MS]


def test_replayed_steps_have_the_shares_of_the_breakdown():
    """Of 50 ms, rank 0 waits 10 ms for rank 1, in which nothing is recorded of rank 1."""
    found = figures(cpu_run())
    shares = {name: value for name, value in found[2].items() if name.endswith("_pct")}
    assert shares["esprof/wait_pct"] == pytest.approx(10, abs=0.1)
    assert found[2]["esprof/wait_pct_max"] == pytest.approx(20, abs=0.1)
    assert found[2]["esprof/is_profiled"] == 1
    assert sum(shares.values()) == pytest.approx(100, abs=0.01)
    # The first step is no steady-state step.
    assert "esprof/wait_pct" not in found[0]
    assert found[0]["esprof/step_time_ms"] == 50


def test_the_verdict_is_that_of_diagnose_unless_redacted():
    assert StepSeries.of(cpu_run()).verdict.startswith("Rank 1")
    assert StepSeries.of(cpu_run(), redact=True).verdict == ""
    assert "No window was recorded" in StepSeries.of(step_runs.run(step_table([10, 10]))).verdict


def test_a_run_without_a_step_has_no_series():
    assert figures(step_runs.run(step_table([]))) == {}
