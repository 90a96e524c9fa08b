"""Share of a run in which a rank is slow: by the durations of steps, and by CPU time."""

import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.run.run import Run
from tests.cases.graph import EPOCH_NS, gloo, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000
WINDOW = range(10, 17)


def recorded(compute_ms: float, sleep_ms: float) -> list:
    """Seven steps of 100 ms: a pause, a forward pass, an all-reduce that ends at 80 ms."""
    rows = []
    for n in WINDOW:
        at = n * 100 * MS
        begin = at + sleep_ms * MS
        rows += [step(n, at, at + 100 * MS), op("aten::zeros", at, 10), op("aten::linear", begin, compute_ms * MS)]
        rows += [
            *gloo(begin + compute_ms * MS, begin + compute_ms * MS + 5, at + 80 * MS),
            op("end", at + 80 * MS, 19 * MS),
        ]
    return rows


def job(plain_ms, *, compute_ms=30.0, sleep_ms=0.0, cpu_ms=(None, None)) -> Run:
    """A job whose rank 1 computes or sleeps for longer in the window.

    `plain_ms` are the durations of the steps outside of it, 10 before and the rest after; `cpu_ms` is the CPU time of all
    steps of each rank, including the window.
    """
    run = run_of({0: recorded(30, 0), 1: recorded(compute_ms, sleep_ms)})
    took = [*plain_ms[:10], *[100] * 7, *plain_ms[10:]]
    phase = ["plain"] * 10 + ["timed"] * 7 + ["plain"] * (len(plain_ms) - 10)
    # The window begins where the rows of its steps do.
    start_ns = EPOCH_NS + round((WINDOW[0] * 100 - sum(plain_ms[:10])) * NS)
    ran_ns = [{} if ran is None else {"cpu_ns": [round(ms * NS) for ms in ran]} for ran in cpu_ms]
    tables = [step_table(took, start_ns=start_ns, phase=phase, **columns) for columns in ran_ns]
    return Run(run.meta, lambda name, rank: tables[rank] if name == "steps" else run.recorded(name, rank))


def straggler(run: Run):
    return next(one for one in diagnose(run).findings if one.id.startswith("ESP20"))


def test_a_rank_that_sleeps_throughout_the_run_is_priced_by_replay():
    found = straggler(job([100] * 40, sleep_ms=40))
    assert found.evidence["share_of_run"].value == 1
    assert found.command is not None
    assert "not permanent" not in found.advice


def test_a_rank_that_sleeps_for_some_steps_is_priced_by_their_share():
    # 8 of 40 steps outside of the window are as slow as those in it.
    plain = [60] * 6 + [100] * 8 + [60] * 26
    found = straggler(job(plain, sleep_ms=40))
    assert found.evidence["share_of_run"].value == pytest.approx(
        8 / 39, abs=0.01
    )  # The job's first step does not count.
    assert found.command is None
    assert found.saving_us == pytest.approx(40_000 * 8 / 39, rel=0.05)
    # The interval includes the uncertainty of a share of 8 in 39.
    assert found.saving_high_us - found.saving_us > 40_000 * 1.9 * np.sqrt(8 / 39 * 31 / 39 / 39)
    assert "The delay is not permanent" in found.advice
    assert "40.0 ms (`straggler[work]=fix`)" in found.advice


def test_a_slow_computation_must_show_in_the_cpu_time_of_the_other_steps():
    steps = np.arange(47)
    window = (steps >= 10) & (steps < 17)
    usual = [30.0] * 47
    always, then_only = [50.0] * 47, np.where(window, 50.0, 30.0)
    assert straggler(job([100] * 40, compute_ms=50, cpu_ms=(usual, always))).evidence["share_of_run"].value == 1
    found = diagnose(job([100] * 40, compute_ms=50, cpu_ms=(usual, then_only))).findings
    assert not any(one.id.startswith("ESP20") and one.saving_us > 0 for one in found)


def test_the_share_is_unknown_if_there_are_too_few_steps():
    found = straggler(job([100] * 12, sleep_ms=40))
    assert "share_of_run" not in found.evidence
    assert found.command is not None
