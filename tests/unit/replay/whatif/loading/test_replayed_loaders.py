"""What-ifs on the DataLoaders of a job of one rank whose steps wait for data."""

import pytest

from esprof.core.types import us
from esprof.replay import Replayed
from esprof.replay.answer import WhatIf
from esprof.run.run import Run
from tests.cases.graph import op, run_of, step
from tests.cases.loading import MS, loading_job


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
        (1, "cache[samples]=0.5", 30),
        (1, "cache[samples]=0.75,loader.workers=2", 20),
        (1, "loader.shared=2", 30 + 60 / 8 / 4),
        (2, "loader.in_order=0", 30),
        (1, "cpu=2x", 30),
        (1, "cpu=2x,loader.workers=2", 15),
    ],
)
def test_the_step_takes_the_longer_of_itself_and_the_time_until_its_batch_is_there(recorded, scenario, step_ms):
    found = answer(loading_job(workers=recorded), scenario)
    assert found.predicted_us == pytest.approx(step_ms * 1000, rel=0.03), found.reason


def test_a_job_that_shares_waits_for_the_last_sample_of_another():
    """Of four samples of 15 ms it prepares two, and waits for a quarter of one: half of what Graham's bound allows."""
    assert answer(loading_job(samples=4), "loader.shared=2").predicted_us == pytest.approx(33_750, rel=0.03)


def test_only_decoding_gets_faster():
    assert answer(loading_job(cpu_ms=50, decode_ms=40), "decode=2x").predicted_us == pytest.approx(40_000, rel=0.03)
    assert "no decoding was recognised" in answer(loading_job(cpu_ms=50), "decode=2x").reason


def test_a_cache_adds_to_the_hits_that_there_were():
    """Half of the bytes came from storage: a cache of three quarters halves what is still read."""
    run = loading_job(read_bytes=500_000, read_chars=1_000_000)
    assert answer(run, "cache=0.75").predicted_us == pytest.approx((15 + 45 / 2) * 1000, rel=0.03)


def test_storage_that_is_no_local_disk_has_had_no_hits():
    """45 ms of waiting for 1 kB from the disk: the batches wait for something else."""
    run = loading_job(read_bytes=1000, read_chars=1_000_000)
    assert answer(run, "cache=0.5").predicted_us == pytest.approx((15 + 45 / 2) * 1000, rel=0.03)


@pytest.mark.parametrize(
    ("more", "scenario", "reason"),
    [
        ({"cpu_ms": 30, "ready_ms": 9}, "loader.workers=2", "waits for a CPU for 15 % of its time"),
        ({"cpu_ms": 60}, "storage=2x", "its time is CPU time"),
        ({"workers": 0}, "loader.prefetch=2", "add loader.workers=1"),
        ({"workers": 1}, "loader.in_order=0", "made in order anyway"),
        ({}, "cache[samples]=0.5,order=shuffle", "leave out cache[samples]"),
    ],
)
def test_is_declined_with_the_reason_where_the_run_cannot_say(more, scenario, reason):
    assert reason in answer(loading_job(**more), scenario).reason


def test_a_job_without_a_recorded_loader_is_declined():
    rows = [row for n in range(9) for row in (step(n, n * 1000, n * 1000 + 1000), op("forward", n * 1000, 990))]
    assert "no DataLoader was recorded" in answer(run_of({0: rows}), "loader.workers=2").reason


def test_batches_that_scatter_widen_the_interval():
    steady, scattered = (answer(loading_job(scatter=of), "loader.workers=2") for of in (0, 0.7))
    assert scattered.high_us - scattered.low_us > steady.high_us - steady.low_us + us(2 * MS)
