"""Runs of large jobs that benchmarks write: what was planted is what is replayed."""

import numpy as np
import pytest

import esprof
from benchmarks.large_job import LargeJob, simulated, write
from benchmarks.skeletons import compared
from esprof.replay.building.build import build_counted
from esprof.replay.engine.timeline import replay, strict
from esprof.replay.steps import steps_of

JOB = LargeJob(2, 4, 2, steps=5, microbatches=4, kernels=5, slow_rank=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "run"
    write(folder, JOB)
    return esprof.load(folder)


def test_all_collectives_and_messages_match(run):
    built = build_counted(run)
    assert not built.clocks.untied
    counts = built.counts
    assert counts.collectives_matched == counts.collectives > 0
    assert counts.p2p_matched == counts.p2p > 0
    assert not counts.collectives_ended_early
    assert not counts.kernels_without_launch


def test_replay_explains_the_steps_without_residuals(run):
    steps = steps_of(run)
    built = build_counted(run, steps)
    replayed = replay(strict(built.dfg)).step_ns()
    measured = steps.measured_ns(dict.fromkeys(run.ranks, 0))
    assert np.abs(replayed / measured - 1).max() < 0.02


def test_kernels_of_the_slow_rank_take_longer(run):
    took = {}
    for rank in run.ranks:
        events = run.events(rank)
        took[rank] = float(events.ints("dur_ns")[events.is_kind("kernel")].mean())
    assert max(took, key=lambda rank: took[rank]) == JOB.slow_rank
    others = [took[rank] for rank in took if rank != JOB.slow_rank]
    assert took[JOB.slow_rank] / np.mean(others) == pytest.approx(JOB.slow_compute, rel=0.05)


def test_its_replay_by_skeletons_is_exact(run):
    found = compared(run.path)
    assert not found.declined
    assert not found.differs


def test_the_number_of_events_is_about_what_was_asked_for():
    job = LargeJob.of(8, 20_000)
    middle = simulated(job)[job.pipeline // 2]
    assert len(middle.start[0]) == pytest.approx(20_000, rel=0.1)
