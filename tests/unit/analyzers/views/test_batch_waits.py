"""What waits for batches consist of, by hand and as a sum."""

import numpy as np
import pytest

from esprof.analyzers.views.batch_waits import BLOCKED, IDLE, PASSED, RUNS, STARVED, waits
from tests.cases.graph import EPOCH_NS, run_of, stage, step
from tests.cases.step_runs import step_table

MS = 1_000_000


def made(batch: int, start_ms: float, end_ms: float, worker: int = 0, cpu: float = 0, ready: float = 0) -> dict:
    counted = {"cpu_ns": round(cpu * MS), "ready_ns": round(ready * MS)}
    return stage("fetch", batch, start_ms * 1000, end_ms * 1000, worker) | counted


def taken(batch: int, start_ms: float, end_ms: float, worker: int | None = 0, cpu: float = 0, ready: float = 0) -> dict:
    counted = {"cpu_ns": round(cpu * MS), "ready_ns": round(ready * MS), "worker": worker}
    return stage("next", batch, start_ms * 1000, end_ms * 1000) | counted


def waited(*stages: dict, steps: tuple[int, ...] = (1,)) -> dict[str, float]:
    """ms by kind, in steps of 100 ms from 0 on."""
    table = step_table([100] * 5, start_ns=EPOCH_NS)
    run = run_of({0: [step(0, 0, 1000)]}, stages={0: list(stages)}, steps={0: table})
    return {kind: pytest.approx(ns / MS, abs=1e-3) for kind, ns in waits(run, 0, steps).items()}


def test_a_wait_is_what_its_worker_does_until_the_batch_is_passed_on():
    """The worker makes the batch before until 110 ms, has no request until 115, makes this one until 155; it takes 160."""
    stages = (made(0, 60, 110, cpu=50), made(1, 115, 155, cpu=10, ready=10), taken(1, 100, 160))
    assert waited(*stages) == {RUNS: 20, BLOCKED: 20, STARVED: 10, PASSED: 5, IDLE: 5}


def test_a_batch_that_is_ready_is_only_passed_on():
    assert waited(made(1, 10, 40), made(2, 101, 180, cpu=79), taken(1, 100, 103)) == {PASSED: 3}


def test_without_workers_the_rank_makes_the_batch():
    assert waited(taken(1, 100, 150, worker=None, cpu=20)) == {BLOCKED: 30, RUNS: 20}


def test_only_waits_that_end_in_the_steps_count_and_steps_share_them():
    stages = [taken(n, n * 100 + 10, n * 100 + 30, worker=None) for n in range(5)]
    assert waited(*stages, steps=(1, 3)) == {BLOCKED: 20}
    assert waited(*stages[:2], steps=(1, 3)) == {BLOCKED: 10}
    assert waited(*stages, steps=(9,)) == {}


def test_the_kinds_sum_to_the_waits():
    rng, stages, total, at = np.random.default_rng(0), [], 0.0, [0.0, 0.0]
    clock = 0.0
    for batch in range(60):
        start = max(at[batch % 2], clock - rng.uniform(0, 20))
        end = start + rng.uniform(1, 9)
        at[batch % 2] = end
        until = max(clock, end) + rng.uniform(0, 1)
        stages += [
            made(batch, start, end, batch % 2, cpu=rng.uniform(0, end - start)),
            taken(batch, clock, until, batch % 2),
        ]
        total += until - clock
        clock = until + rng.uniform(0, 3)
    assert sum(one.expected for one in waited(*stages, steps=(0, 1, 2, 3, 4)).values()) * 5 == pytest.approx(
        total, rel=1e-6
    )
