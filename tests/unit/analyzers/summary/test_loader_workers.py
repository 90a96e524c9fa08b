"""What the workers of loaders do."""

import pytest

from esprof.analyzers.summary.loader_workers import input_stages
from tests.cases.graph import op, run_of, stage, step

ROWS = [step(1, 0, 50_000), op("train", 0, 50_000)]


def part(batch, name, took_us, worker=0):
    return stage("part", batch, 0, 10_000, worker) | {"name": name, "took_ns": took_us * 1_000}


def test_times_of_a_worker_are_those_of_its_mean_batch():
    fetches = [
        stage("fetch", 0, 0, 10_000) | {"cpu_ns": 4_000_000, "ready_ns": 1_000_000, "name": None, "took_ns": None},
        stage("fetch", 1, 10_000, 20_000) | {"cpu_ns": 4_000_000, "ready_ns": 1_000_000},
        stage("fetch", 2, 0, 2_000, worker=1) | {"cpu_ns": 2_000_000},
        stage("fetch", 3, 8_000, 10_000, worker=1) | {"cpu_ns": 2_000_000},
    ]
    parts = [part(0, "decode", 3_000), part(1, "decode", 5_000), part(1, "collate", 1_000), part(2, "collate", 500, 1)]
    found = input_stages(run_of({0: ROWS}, stages={0: [*fetches, *parts]}))
    busy, idle = found.workers
    assert (busy.rank, busy.worker, busy.batches, busy.busy_pct) == (0, 0, 2, 100.0)
    assert (busy.making_us, busy.cpu_us, busy.ready_us, busy.blocked_us) == (10_000, 4_000, 1_000, 5_000)
    assert [(one.name, one.us) for one in busy.parts] == [("decode", 4_000), ("collate", 500)]
    assert (idle.worker, idle.busy_pct, idle.making_us) == (1, pytest.approx(40.0), 2_000)


def test_a_rank_without_workers_makes_its_batches_itself():
    own = stage("next", 0, 0, 10_000) | {"workers": 0, "worker": None, "cpu_ns": 9_000_000}
    (worker,) = input_stages(run_of({0: ROWS}, stages={0: [own]})).workers
    assert (worker.worker, worker.making_us, worker.cpu_us) == (None, 10_000, 9_000)


def test_a_run_without_stages_has_none():
    assert input_stages(run_of({0: ROWS})) is None
