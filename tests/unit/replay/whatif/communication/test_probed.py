"""What-ifs on communication in probed runs, worked by hand: 1 MiB took 20 ms, or 19.07 ns per byte."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.communication.probed import ProbedCollectives
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


def test_without_probes_no_curve_is_known():
    run = run_with((1, 1), (2,))
    assert ProbedCollectives.of(run) is None
    assert ProbedCollectives.of(probed(run)) is None


def test_a_link_is_as_fast_as_the_slope_of_its_curve():
    run = probed(run_with((1, 1), (2,)), link(1e6, 10.0, cpu_ns_per_byte=2.0))
    found = ProbedCollectives.of(run).link("gloo:all_reduce", (0, 1))
    assert found.ns_per_byte == pytest.approx(10)
    assert found.cpu_ns_per_byte == pytest.approx(2)


def test_ranks_that_were_not_measured_are_like_as_many_others():
    run = probed(run_with((1, 1), (2,)), link(1e6, 10.0))
    assert ProbedCollectives.of(run).curve("gloo:all_reduce", (2, 3)) is not None
    assert ProbedCollectives.of(run).curve("gloo:all_reduce", (0, 1, 2)) is None
    assert ProbedCollectives.of(run).curve("gloo:all_gather", (0, 1)) is None


def test_a_faster_link_shortens_its_measured_share_and_not_the_latency():
    """The all-reduce of 4 MiB took 80 ms: 42 ms on the link, 38 elsewhere."""
    run = run_with((1, 1, 1, 1), (4,))
    plain = step_ms(run, "network=1x")
    run = probed(run, link(38e6, 42e6 / (4 * MIB)))
    assert step_ms(run, "network=1x") == pytest.approx(plain)
    assert plain - step_ms(run, "network=2x") == pytest.approx(21, abs=0.2)
    assert plain - step_ms(run, "network=1000x") == pytest.approx(42, abs=0.3)


def test_no_link_is_so_fast_that_the_cpus_cannot_follow():
    run = run_with((1, 1, 1, 1), (4,))
    plain = step_ms(run, "network=1x")
    run = probed(run, link(0, PER_BYTE, cpu_ns_per_byte=PER_BYTE / 4))
    assert plain - step_ms(run, "network=2x") == pytest.approx(40, abs=0.2)
    assert plain - step_ms(run, "network=1000x") == pytest.approx(60, abs=0.2)


def test_buckets_have_the_measured_cost_of_their_size():
    """Nine all-reduces of 1 MiB instead of one of 9: each has a fixed cost of 3 ms."""
    run = run_with((1,) * 9, (9,))
    (unknown,) = what_if(run, build(run), ["bucket_mb=1"])
    assert not unknown.answered
    run = probed(run, link(3e6, PER_BYTE))
    # The first gradient is ready at 10 ms, then nine all-reduces of 23 ms follow one another, a copy and the rest.
    assert step_ms(run, "bucket_mb=1") == pytest.approx(10 + 9 * 23 + 1 + 5, abs=0.5)


def test_buckets_beyond_the_curve_are_declined():
    run = probed(run_with((1,) * 4, (1, 1, 1, 1)), link(3e6, PER_BYTE, sizes=(1 << 12, 1 << 16, 1 << 20)))
    (answer,) = what_if(run, build(run), ["bucket_mb=4"])
    assert "a bucket of 4.0 MiB is outside the measured range, 4.0 KiB to 1.0 MiB, by more than a factor of 2" in (
        answer.reason
    )


def test_the_same_buckets_again_change_nothing():
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    before = step_ms(run, "network=1x")
    run = probed(run, link(0, PER_BYTE), *slowing(PER_BYTE, PER_BYTE / 4))
    assert step_ms(run, "bucket_mb=1") == pytest.approx(before, rel=0.01)
    assert step_ms(run, "network=1x") == pytest.approx(before, rel=1e-3)
