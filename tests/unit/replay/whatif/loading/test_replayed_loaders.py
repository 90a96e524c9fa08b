"""What-ifs on the DataLoaders of a job of one rank whose steps wait for data."""

import numpy as np
import pytest

from esprof.core.types import us
from esprof.replay import Replayed
from esprof.replay.answer import WhatIf
from esprof.replay.whatif.loading.loader_queue import delivered
from esprof.run.run import Run
from tests.cases.graph import EPOCH_NS, load_call, op, run_of, stage, step
from tests.cases.step_runs import step_table

MS = 1_000_000
STEPS = 24
COMPUTE_MS, BATCH_MS = 20.0, 60.0


def job(
    workers: int = 1, cpu_ms: float = 15, ready_ms: float = 0, decode_ms: float = 0, scatter: float = 0, **reads
) -> Run:
    """Steps of 20 ms, whose batches take 60 ms or scatter around that, `cpu_ms` of that on a CPU and the rest blocked."""
    took = BATCH_MS * np.random.default_rng(0).uniform(1 - scatter, 1 + scatter, (1, STEPS + 1))
    steps = np.full(STEPS + 1, COMPUTE_MS)
    at = delivered(took, np.array([workers]), np.array([2 * workers or 1]), steps)[0].tolist()
    rows, stages, lengths = [], [], []
    for n in range(STEPS):
        begin = at[n - 1] + COMPUTE_MS if n else 0.0
        end = at[n] + COMPUTE_MS
        rows += [
            step(n, begin * 1000, end * 1000),
            load_call(begin * 1000, at[n] * 1000, worker=workers > 0),
            op("forward", at[n] * 1000 + 1, COMPUTE_MS * 1000 - 2),
        ]
        lengths.append(end - begin)
        counted = {"cpu_ns": round(cpu_ms * MS), "ready_ns": round(ready_ms * MS), "name": None, **reads}
        counted |= {"read_bytes": reads.get("read_bytes"), "read_chars": reads.get("read_chars")}
        taken = stage("next", n, begin * 1000, at[n] * 1000) | {"workers": workers} | counted
        made = stage("fetch", n, (at[n] - took[0, n]) * 1000, at[n] * 1000, worker=n % max(workers, 1)) | counted
        stages += [taken, made] if workers else [taken]
        if decode_ms:
            stages.append(made | {"kind": "part", "name": "decode", "cpu_ns": round(decode_ms * MS)})
    table = step_table([round(length) for length in lengths], start_ns=EPOCH_NS, phase="timed", first=0)
    return run_of({0: rows}, stages={0: stages}, steps={0: table})


def answer(run: Run, scenario: str) -> WhatIf:
    (found,) = Replayed.of(run, max_error_pct=100).pricer.answers([scenario])
    return found


@pytest.mark.parametrize(
    ("recorded", "scenario", "step_ms"),
    [
        (1, "loader.workers=2", 30),
        (1, "loader.workers=4", 20),
        (2, "loader.workers=1", 60),
        (0, "loader.workers=1", 60),
        (1, "loader.workers=0", 80),
        (1, "loader.prefetch=8", 60),
        (1, "storage=3x", 30),
        (1, "storage=1000x", 20),
        (1, "cache=0.5", 37.5),
        (1, "cache=0.5,loader.workers=2", 20),
        (1, "cache[lru]=0.5", 15 + 45 * (1 - 0.1534)),
        (1, "cpu=2x", 30),
        (1, "cpu=2x,loader.workers=2", 15),
    ],
)
def test_the_step_takes_the_longer_of_itself_and_the_time_until_its_batch_is_there(recorded, scenario, step_ms):
    found = answer(job(workers=recorded), scenario)
    assert found.predicted_us == pytest.approx(step_ms * 1000, rel=0.03), found.reason


def test_only_decoding_gets_faster():
    assert answer(job(cpu_ms=50, decode_ms=40), "decode=2x").predicted_us == pytest.approx(40_000, rel=0.03)
    assert "no decoding was recognised" in answer(job(cpu_ms=50), "decode=2x").reason


def test_a_cache_adds_to_the_hits_that_there_were():
    """Half of the bytes came from storage: a cache of three quarters halves what is still read."""
    run = job(read_bytes=500_000, read_chars=1_000_000)
    assert answer(run, "cache=0.75").predicted_us == pytest.approx((15 + 45 / 2) * 1000, rel=0.03)


def test_storage_that_is_no_local_disk_has_had_no_hits():
    """45 ms of waiting for 1 kB from the disk: the batches wait for something else."""
    run = job(read_bytes=1000, read_chars=1_000_000)
    assert answer(run, "cache=0.5").predicted_us == pytest.approx((15 + 45 / 2) * 1000, rel=0.03)


@pytest.mark.parametrize(
    ("more", "scenario", "reason"),
    [
        ({"cpu_ms": 30, "ready_ms": 9}, "loader.workers=2", "waits for a CPU for 15 % of its time"),
        ({"cpu_ms": 60}, "storage=2x", "its time is CPU time"),
        ({"workers": 0}, "loader.prefetch=2", "add loader.workers=1"),
    ],
)
def test_is_declined_with_the_reason_where_the_run_cannot_say(more, scenario, reason):
    assert reason in answer(job(**more), scenario).reason


def test_a_job_without_a_recorded_loader_is_declined():
    rows = [row for n in range(9) for row in (step(n, n * 1000, n * 1000 + 1000), op("forward", n * 1000, 990))]
    assert "no DataLoader was recorded" in answer(run_of({0: rows}), "loader.workers=2").reason


def test_batches_that_scatter_widen_the_interval():
    steady, scattered = (answer(job(scatter=of), "loader.workers=2") for of in (0, 0.7))
    assert scattered.high_us - scattered.low_us > steady.high_us - steady.low_us + us(2 * MS)
