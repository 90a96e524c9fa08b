"""CPU work concurrent with communication in probed runs, worked by hand: 1 MiB took 20 ms, or 19.07 ns per byte."""

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.communication.slowing import Slowing
from esprof.replay.whatif.pricing import what_if
from tests.cases.gloo_buckets import run_with
from tests.cases.probed import link, probes, slowing

MIB = 1 << 20
PER_BYTE = 20e6 / MIB


def probed(run, *sweeps):
    run.probes = probes(*sweeps)
    return run


def step_ms(run, spec):
    (answer,) = what_if(run, build(run), [spec])
    assert answer.answered, answer.reason
    return answer.predicted_us / 1e3


def slowing_of(run):
    return Slowing.of(run, replay(build(run)))


def test_work_gets_faster_without_concurrent_communication():
    """Four all-reduces of 1 MiB, from 10 ms on: three begin during the backward pass, which lasts until 40 ms."""
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    sweeps = link(0, PER_BYTE), *slowing(PER_BYTE, PER_BYTE / 4)
    alone, freed = step_ms(run, "bucket_mb=4"), step_ms(probed(run, *sweeps), "bucket_mb=4")
    # 30 ms of work and three copies of 1 ms overlapped communication, which took a quarter of that. One bucket follows,
    # without concurrent work.
    assert alone - freed == pytest.approx(33 / 4, abs=0.1)


def test_work_gets_slower_with_concurrent_communication():
    """A gradient of 4 MiB at 10 ms is sent for 80 ms, 30 of them during the rest of the backward pass."""
    run = run_with((4, 0.001, 0.001, 0.001), (1, 3))
    dfg = build(probed(run, link(0, PER_BYTE), *slowing(PER_BYTE, PER_BYTE / 4, sizes=(1 << 20, 1 << 22))))
    slowed = slowing_of(run).slowed_ns(replay(dfg))
    of_backward = dfg.of(Cls.COMPUTE) & (dfg.rank == 0) & (dfg.recorded_ns < 39e6)
    assert slowed[of_backward].sum() == pytest.approx(30e6 / 4, rel=0.01)


def test_the_slowdown_by_communication_is_the_measured_one():
    run = probed(run_with((1, 1), (2,)), link(0, PER_BYTE), *slowing(PER_BYTE, 5.0))
    sizes, per_byte = slowing_of(run).lost[0]
    assert sizes.tolist() == [1 << 16, 1 << 20]
    assert per_byte == pytest.approx([5, 5], rel=1e-3)


def test_slowdown_is_unknown_if_one_rank_measured_nothing():
    passes = [one for one in slowing(PER_BYTE, 5.0) if one.ranks != (1,)]
    assert slowing_of(probed(run_with((1, 1), (2,)), link(0, PER_BYTE), *passes)) is None


def test_passes_that_got_faster_during_communication_lose_nothing():
    run = probed(run_with((1, 1), (2,)), link(0, PER_BYTE), *slowing(PER_BYTE, -5.0))
    _, per_byte = slowing_of(run).lost[0]
    assert per_byte.tolist() == [0, 0]


def test_a_node_keeps_a_quarter_of_its_time_at_least():
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    found = slowing_of(probed(run, link(0, PER_BYTE), *slowing(PER_BYTE, 0.9 * PER_BYTE)))
    recorded = found.recorded.dfg
    share = found.undisturbed.dur_ns / np.maximum(recorded.dur_ns, 1)
    assert share[recorded.dur_ns > 0].min() == pytest.approx(0.25, rel=1e-6)
