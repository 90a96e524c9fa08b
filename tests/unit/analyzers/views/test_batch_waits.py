"""What waits for batches consist of, by hand and as a sum."""

import numpy as np
import pytest

from esprof.analyzers.views.batch_waits import (
    BLOCKED,
    IDLE,
    PASSED,
    PINNED,
    RUNS,
    STARVED,
    UNKNOWN,
    UNSPLIT,
    BatchWaits,
    waits,
)
from tests.cases.graph import EPOCH_NS, run_of, stage, step
from tests.cases.step_runs import step_table

MS = 1_000_000


def made(batch: int, start_ms: float, end_ms: float, worker: int = 0, cpu: float = 0, ready: float = 0) -> dict:
    counted = {"cpu_ns": round(cpu * MS), "ready_ns": round(ready * MS)}
    return stage("fetch", batch, start_ms * 1000, end_ms * 1000, worker) | counted


def taken(batch: int, start_ms: float, end_ms: float, worker: int | None = 0, cpu: float = 0, ready: float = 0) -> dict:
    counted = {"cpu_ns": round(cpu * MS), "ready_ns": round(ready * MS), "worker": worker}
    return stage("next", batch, start_ms * 1000, end_ms * 1000) | counted | {"workers": 0 if worker is None else 2}


def waits_in(*stages: dict, steps: tuple[int, ...] = (1,)) -> BatchWaits:
    """In steps of 100 ms from 0 on."""
    table = step_table([100] * 5, start_ns=EPOCH_NS)
    names = dict.fromkeys(name for one in stages for name in one)
    rows = [dict.fromkeys(names) | one for one in stages]
    return waits(run_of({0: [step(0, 0, 1000)]}, stages={0: rows}, steps={0: table}), 0, steps)


def in_ms(took_ns: dict) -> dict:
    return {kind: pytest.approx(ns / MS, abs=1e-3) for kind, ns in took_ns.items() if ns}


def waited(*stages: dict, steps: tuple[int, ...] = (1,)) -> dict[str, float]:
    """ms by kind."""
    return in_ms(waits_in(*stages, steps=steps).by_kind)


def test_a_wait_is_what_its_worker_does_until_the_batch_is_passed_on():
    """The worker makes the batch before until 110 ms, has no request until 115, makes this one until 155; it takes 160."""
    stages = (made(0, 60, 110, cpu=50), made(1, 115, 155, cpu=10, ready=10), taken(1, 100, 160))
    assert waited(*stages) == {RUNS: 20, BLOCKED: 20, STARVED: 10, PASSED: 5, IDLE: 5}


def test_a_batch_that_is_ready_is_only_passed_on():
    assert waited(made(1, 10, 40), made(2, 101, 180, cpu=79), taken(1, 100, 103)) == {PASSED: 3}


def test_without_workers_the_rank_makes_the_batch():
    assert waited(taken(1, 100, 150, worker=None, cpu=20)) == {BLOCKED: 30, RUNS: 20}


def test_parts_divide_what_a_worker_does():
    """The batch takes 50 ms: 30 on a CPU, 10 waiting for one, 10 blocked. 20 of its 40 ms of decoding are on a CPU, and its
    time off the CPU is half blocked."""
    part = made(1, 100, 150) | {"kind": "part", "name": "decode", "took_ns": 40 * MS, "cpu_ns": 20 * MS}
    found = waits_in(made(1, 100, 150, cpu=30, ready=10), part, taken(1, 100, 150))
    assert in_ms(found.spent) == {
        ("decode", RUNS): 20,
        ("decode", STARVED): 10,
        ("decode", BLOCKED): 10,
        (UNSPLIT, RUNS): 10,
    }
    assert in_ms(found.by_part) == {"decode": 40}
    assert found.share(RUNS) == pytest.approx(0.6)
    assert found.share(RUNS, part="decode") == pytest.approx(0.4)


def test_pinning_is_a_part_of_passing_a_batch_on():
    pin = stage("pin", 0, 145_000, 155_000) | {"loader": None, "batch": None, "worker": None}
    assert waited(made(1, 60, 140, cpu=80), pin, taken(1, 110, 160)) == {RUNS: 30, PINNED: 10, PASSED: 10}


@pytest.mark.parametrize(("in_order", "overtaken_ms"), [(True, 40), (None, 40), (False, 0)])
def test_a_batch_is_overtaken_by_a_later_one_that_is_ready_first(in_order, overtaken_ms):
    """Batch 2 of the other worker is ready at 110 ms, this one at 150."""
    call = taken(1, 100, 151) | {"in_order": in_order}
    found = waits_in(made(1, 60, 150, 0), made(2, 60, 110, 1), made(0, 10, 20, 1), call)
    assert found.overtaken_ns == pytest.approx(overtaken_ms * MS)


def test_slow_batches_and_starts_of_workers_are_told_apart():
    usual = [made(batch, 10 * batch, 10 * batch + 5) for batch in range(2, 5)]
    slow = waits_in(made(1, 100, 160), *usual, taken(1, 110, 160))
    assert (slow.slow_ns, slow.start_up_ns, slow.batches) == (50 * MS, 0, 1)
    first = waits_in(made(0, 130, 135), *usual, taken(0, 100, 136))
    assert (first.slow_ns, first.start_up_ns) == (0, 30 * MS)


def test_a_wait_for_an_unknown_worker_is_unknown():
    assert waited(taken(1, 100, 150, worker=None) | {"workers": 2}) == {UNKNOWN: 50}


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
